"""Waiting for environments that a server prepares."""

import asyncio
import socket
import threading

import pytest

import thunder_sdk as thunder
from thunder_sdk.testing import RecordingServer, use_sdk

pytestmark = pytest.mark.usefixtures("sdk")

PYTHON = thunder.DockerEnvironment("python:3.12", setup=["pip install x"])


def asked(server):
    return [request for request in list(server.requests) if request.path.endswith("/environment")]


def test_it_is_wanted_where_the_engine_is(server, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with thunder.program(environment=PYTHON) as here:
        monkeypatch.setenv("DOCKER_HOST", "tcp://docker:2375")
        with thunder.program(environment=PYTHON) as there:
            pass
    wanted = PYTHON.payload()
    assert server.programs[here.id].fields["environment"] == {**wanted, "host": socket.gethostname()}
    assert server.programs[there.id].fields["environment"] == {**wanted, "host": "tcp://docker:2375"}


def test_only_environments_are_environments():
    with pytest.raises(thunder.ThunderConfigError, match="environment must be a DockerEnvironment"):
        thunder.program(environment={"image": "python:3.12"})


def test_waiting_for_it(server):
    with thunder.program(environment=PYTHON) as p:
        thunder.flush()
        assert p.environment.container_id is None
        assert p.environment.wait(0) is False
        waiting = threading.Thread(target=p.environment.wait)
        waiting.start()
        server.wait_for(lambda server: any(r.query["wait_s"] == "20.000" for r in asked(server)))
        server.settle_environment(p.id, state="ready", container_id="c1")
        waiting.join()
        assert p.environment.container_id == "c1"
        before = len(asked(server))
        assert p.environment.wait()
        assert asyncio.run(p.environment.wait_async())
        assert len(asked(server)) == before, "what is known is not asked for again"


def test_a_program_that_is_opened_again_has_another_one(server):
    with thunder.program(environment=PYTHON) as p:
        thunder.flush()
        server.settle_environment(p.id, state="ready", container_id="c1")
        assert p.environment.wait(5)
        p._life.learn("active", 2, None)
        assert p.environment.container_id is None


def test_waiting_opens_the_program(server):
    p = thunder.program(environment=PYTHON)
    assert p.environment.wait(0) is False
    thunder.flush()
    assert server.programs[p.id].status == "active"
    p.close()
    with pytest.raises(thunder.ThunderStateError, match="is closed"):
        p.environment.wait()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"state": "failed", "reason": "no such image: x"}, "no such image: x"),
        ({"state": "gone", "reason": "its program is over"}, "its program is over"),
        ({"state": None, "reason": "opened without an environment"}, "opened without"),
        ({"state": "ready"}, "has no environment: ready"),
    ],
)
async def test_what_cannot_be_had_is_said(server, state, message):
    async with thunder.program(environment=PYTHON) as p:
        await asyncio.to_thread(thunder.flush)
        server.settle_environment(p.id, **state)
        with pytest.raises(thunder.ThunderStateError, match=message):
            p.environment.wait()
        with pytest.raises(thunder.ThunderStateError, match=message):
            await p.environment.wait_async()


def test_handles_wait_too(server):
    with thunder.program(environment=PYTHON) as p:
        thunder.flush()
        server.settle_environment(p.id, state="ready", container_id="c1")
        with thunder.attach(p.serialize()) as handle:
            assert handle.environment.wait(5)
            assert handle.environment.container_id == "c1"
    with thunder.program() as bare, pytest.raises(thunder.ThunderStateError, match="give it one"):
        bare.environment.wait()


def test_a_server_that_has_forgotten_the_program(server):
    handle = thunder.attach(thunder.program().serialize())
    with pytest.raises(thunder.ThunderStateError, match="does not know it"):
        handle.environment.wait()


def test_without_a_server_nothing_is_prepared(server):
    p = thunder.program(environment=PYTHON)
    with use_sdk(server.url, disabled=True), pytest.raises(thunder.ThunderStateError, match="disabled"):
        p.environment.wait()
    assert server.requests == []


def test_an_unreachable_server(dead_url):
    with use_sdk(dead_url):
        p = thunder.program(environment=PYTHON)
        with pytest.raises(thunder.ThunderConnectionError, match="cannot be reached"):
            p.environment.wait()
        handle = thunder.attach(p.serialize())
        with use_sdk(dead_url), pytest.raises(thunder.ThunderConnectionError, match="thunder serve"):
            handle.environment.wait()


@pytest.mark.parametrize(
    ("status", "error"), [(401, thunder.ThunderConfigError), (500, thunder.ThunderConnectionError)]
)
def test_a_server_that_refuses(server, status, error):
    with thunder.program(environment=PYTHON) as p:
        thunder.flush()
        server.fail_next.append(status)
        with pytest.raises(error, match=str(status)):
            p.environment.wait()


def test_it_is_asked_for_again_until_the_time_is_over(server):
    with thunder.program(environment=PYTHON) as p:
        thunder.flush()
        server.settle_environment(p.id, state="waiting", reason="its turn is far off")
        assert p.environment.wait(0.2) is False
        assert len(asked(server)) > 1


async def test_waiting_without_blocking_the_loop(server):
    async with thunder.program(environment=PYTHON) as p:
        waiting = asyncio.create_task(p.environment.wait_async(10))
        await asyncio.to_thread(server.wait_for, asked)
        assert not waiting.done()
        server.settle_environment(p.id, state="ready", container_id="c1")
        assert await waiting
        assert await p.environment.wait_async(1)
    assert await thunder.program(environment=PYTHON).environment.wait_async(0) is False


async def test_who_gives_up_waits_no_longer(server):
    async with thunder.program(environment=PYTHON) as p:
        waiting = asyncio.create_task(p.environment.wait_async())
        await asyncio.to_thread(server.wait_for, asked)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "thunder-environment"]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        server.settle_environment(p.id, state="failed", reason="let the server's thread go")


def test_giving_up_before_anything_was_asked():
    from thunder_sdk._http import Connection
    from thunder_sdk._preparation import _Asking

    _Asking(None).abort()
    Connection("http://127.0.0.1:1", api_key=None, verify=True, timeout=1).abort()


def test_waiting_shows_the_key():
    with RecordingServer(api_key="k") as guarded, use_sdk(guarded.url, api_key="k"):
        p = thunder.program(environment=PYTHON)
        assert p.environment.wait(0.05) is False
        assert asked(guarded)
