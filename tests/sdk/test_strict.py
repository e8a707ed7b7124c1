"""With ``strict`` failures are raised where somebody waits, never in a phase or a heartbeat."""

import asyncio

import pytest

import thunder_sdk as thunder
from thunder_sdk.testing import use_sdk


def test_entering_waits_for_the_answer(server):
    with use_sdk(server.url, strict=True), thunder.program(program_id="a") as p:
        assert [r.method for r in server.requests] == ["PUT"]
        assert p.generation == 1


async def test_entering_in_a_loop(server):
    with use_sdk(server.url, strict=True):
        async with thunder.program(program_id="a"):
            assert [r.method for r in server.requests] == ["PUT"]
        with thunder.program(program_id="b"):
            assert len(server.requests) == 2  # only queued: the loop is not blocked
        await asyncio.to_thread(thunder.flush, 30)


def test_an_unreachable_server_raises(dead_url):
    with use_sdk(dead_url, strict=True):
        p = thunder.program()
        with pytest.raises(thunder.ThunderConnectionError, match=dead_url):
            p.__enter__()
        assert p.outcome == "dropped"
        assert thunder.current_program() is None
        q = thunder.program()
        q.heartbeat()
        with q.acting("bash"):
            pass
        with pytest.raises(thunder.ThunderConnectionError):
            thunder.flush(30)
        with pytest.raises(thunder.ThunderConnectionError):
            q.close()


async def test_an_unreachable_server_raises_in_a_loop(dead_url):
    with use_sdk(dead_url, strict=True), pytest.raises(thunder.ThunderConnectionError):
        await thunder.program().__aenter__()


def test_a_refused_key_is_a_matter_of_configuration(server):
    server.api_key = "right"
    with use_sdk(server.url, strict=True, api_key="wrong"):
        with pytest.raises(thunder.ThunderConfigError, match="401"):
            thunder.program().__enter__()
        with pytest.raises(thunder.ThunderConfigError, match="THUNDER_API_KEY"):
            thunder.flush(30)


def test_another_exception_is_not_hidden(server, caplog):
    with use_sdk(server.url, strict=True):
        p = thunder.program().__enter__()
        server.fail_next.append(500)
        p.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert "is not with the server yet" in caplog.text


async def test_a_slow_server_raises_after_a_while(server):
    server.gate.clear()
    with use_sdk(server.url, strict=True, patience=0.02):
        with pytest.raises(thunder.ThunderConnectionError, match="in time"):
            await thunder.program().__aenter__()
        with pytest.raises(thunder.ThunderConnectionError, match="in time"):
            await asyncio.to_thread(thunder.program().__enter__)
        server.gate.set()
        await asyncio.to_thread(thunder.flush, 30)


def test_without_it_nothing_is_raised(dead_url):
    with use_sdk(dead_url), thunder.program(), thunder.acting("bash"):
        pass


async def test_cancelled_while_entering_leaves_nothing_open(server):
    server.gate.clear()
    with use_sdk(server.url, strict=True):
        p = thunder.program()
        entering = asyncio.create_task(p.__aenter__())
        while not p.headers() or not p._life.opened:
            await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert (p.status, p.outcome, thunder.current_program()) == ("terminated", "dropped", None)
        server.gate.set()
        await asyncio.to_thread(thunder.flush, 30)
    assert server.programs[p.id].outcome == "dropped"
