"""A program's life, as its user and the server see it."""

import asyncio
import threading

import pytest

import thunder_sdk as thunder
from thunder_sdk import wire
from thunder_sdk.testing import use_sdk

pytestmark = pytest.mark.usefixtures("sdk")


def told(server):
    """Method, program and outcome of everything but events."""
    return [
        (r.method, r.path.rpartition("/")[2], r.query.get("outcome"))
        for r in server.requests
        if not r.path.endswith("/events")
    ]


def test_a_program_opens_acts_and_closes_in_order(server):
    with thunder.program("solve") as p:
        assert thunder.current_program() is p
        with p.acting("bash", expected=2) as tool:
            pass
    assert thunder.current_program() is None
    assert server.requests[0].method == "PUT"
    assert server.requests[-1].method == "DELETE"
    started, finished = server.events
    assert (started["type"], started["call_id"], started["tool"], started["expected_s"]) == (
        "acting.started", tool.call_id, "bash", 2.0,
    )  # fmt: skip
    assert (finished["type"], finished["call_id"], finished["ok"]) == ("acting.finished", tool.call_id, True)
    assert started["seq"] < finished["seq"]
    assert (p.status, p.outcome) == ("terminated", "success")
    assert server.programs[p.id].outcome == "success"


async def test_async_programs_nest(server):
    async with thunder.program("outer", group="g", priority=3) as outer:
        async with thunder.program("inner") as inner:
            assert (inner.parent_id, inner.group) == (outer.id, "g")
            assert inner.headers()["X-Thunder-Priority"] == "3"
        assert thunder.current_program() is outer
        root = thunder.program("root", parent=None)
        assert (root.parent_id, root.group) == (None, None)
        assert thunder.program(parent=inner, group="h", priority=0).group == "h"
        assert thunder.program(parent="somebody").parent_id == "somebody"
        again = thunder.program(program_id=inner.id, parent=inner)  # nobody is their own parent
        assert (again.parent_id, again.group) == (outer.id, "g")
    assert server.programs[inner.id].fields["priority"] == 3


def test_everything_said_is_put(server):
    metadata = {"issue": 7}
    p = thunder.program(
        "solve", program_id="fix-7", parent=None, group="eval", priority=-2, tags=["a", "b"],
        metadata=metadata, expected_context=40_000, lease=30, max_wait=0,
    )  # fmt: skip
    metadata["issue"] = 8
    with p:
        assert p.headers() == {
            "X-Thunder-Program-Id": "fix-7",
            "X-Session-ID": "fix-7",
            "X-Thunder-Group": "eval",
            "X-Thunder-Priority": "-2",
            "X-Thunder-Max-Wait": "0",
        }
    assert server.programs["fix-7"].fields == {
        "name": "solve", "group": "eval", "priority": -2, "tags": ["a", "b"], "metadata": {"issue": 7},
        "expected_context_tokens": 40_000, "lease_s": 30.0, "max_wait_s": 0.0,
    }  # fmt: skip


def test_making_one_sends_nothing(server):
    p = thunder.program("idle")
    assert p.id.startswith("prg_")
    assert len(p.id) == 36
    assert (p.name, p.status, p.outcome, p.generation, p.parent_id) == ("idle", "active", None, 1, None)
    assert p.headers()
    p.close()
    assert thunder.flush(30)
    assert server.requests == []
    assert p.status == "terminated"


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.acting("bash").__enter__(),
        lambda p: p.activate().__enter__(),
        lambda p: p.heartbeat(),
        lambda p: p.resources.container("c1"),
    ],
    ids=["acting", "activate", "heartbeat", "resources"],
)
def test_first_use_opens(server, use):
    p = thunder.program()
    use(p)
    with p:
        pass
    assert told(server) == [("PUT", p.id, None), ("DELETE", p.id, "success")]


class Cancelled(BaseException):
    """As trio names it."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("x"), "error"),
        (SystemExit(), "success"),
        (SystemExit(0), "success"),
        (SystemExit(3), "error"),
        (KeyboardInterrupt(), "dropped"),
        (asyncio.CancelledError(), "dropped"),
        (GeneratorExit(), "dropped"),
        (Cancelled(), "dropped"),
        (BaseExceptionGroup("g", [ValueError()]), "error"),
    ],
    ids=repr,
)
def test_how_leaving_ends_it(server, error, outcome):
    with pytest.raises(type(error)) as caught, thunder.program() as p:
        raise error
    assert caught.value is error
    assert (p.outcome, server.programs[p.id].outcome) == (outcome, outcome)


async def test_cancellation_drops_and_propagates(server):
    entered = asyncio.Event()

    async def run():
        async with thunder.program(program_id="c"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(thunder.flush, 30)
    assert server.programs["c"].outcome == "dropped"


def test_the_first_close_wins(server):
    with thunder.program() as p:
        p.close("error")
        p.close("success")
        with pytest.raises(thunder.ThunderConfigError, match="success, error, dropped"):
            p.close("lease_expired")
    assert told(server) == [("PUT", p.id, None), ("DELETE", p.id, "error")]
    assert p.outcome == "error"


def test_after_the_end(server):
    with thunder.program() as p:
        tool = p.acting("bash").__enter__()
        held = p.resources.container("c1")
        activation = p.activate()
        later = p.acting("later")
    seen = len(server.requests)
    assert (p.headers(), p.extra_body()) == ({}, {})
    p.heartbeat()
    p.close()
    tool.__exit__(None, None, None)
    held.release()
    for use in (
        lambda: p.acting("bash"), lambda: p.activate(), lambda: p.resources, lambda: p.__enter__(),
        activation.__enter__, later.__enter__,
    ):  # fmt: skip
        with pytest.raises(thunder.ThunderStateError, match="closed"):
            use()
    assert thunder.flush(30)
    assert len(server.requests) == seen


def test_entering_twice():
    p = thunder.program()
    with p, pytest.raises(thunder.ThunderStateError, match="entered already"):
        p.__enter__()


def test_an_ended_program_gives_way_to_the_one_around_it():
    with thunder.program() as outer, thunder.program() as middle, thunder.program() as inner:
        middle.close()
        assert thunder.current_program() is inner
        inner.close()
        assert thunder.current_program() is outer
        outer.close()
        assert thunder.current_program() is None


def test_leaving_in_another_order():
    outer, inner = thunder.program(), thunder.program()
    outer.__enter__()
    activation = inner.activate()
    activation.__enter__()
    outer.__exit__(None, None, None)
    assert thunder.current_program() is inner
    activation.__exit__(None, None, None)
    assert thunder.current_program() is None


async def test_activate_makes_current_without_ending(server):
    p = thunder.program()
    async with p.activate() as same:
        assert same is p
        assert thunder.current_program() is p
        with p.activate():
            pass
        assert thunder.current_program() is p
    assert thunder.current_program() is None
    assert p.outcome is None
    p.close()


def test_heartbeats(server):
    with thunder.program() as p:
        p.heartbeat()
    assert [e["type"] for e in server.events] == ["heartbeat"]


def test_generations_come_from_the_server(server):
    for _ in range(2):
        with thunder.program(program_id="again") as p:
            assert thunder.flush(30)
    assert p.generation == 2
    assert server.requests[-1].query["generation"] == "2"


def test_base_url_and_env(server, monkeypatch):
    monkeypatch.setenv("UNRELATED", "kept")
    p = thunder.program()
    assert p.base_url == f"{server.url}/p/{p.id}/v1"
    env = p.env()
    assert env["UNRELATED"] == "kept"
    assert env["THUNDER_BASE_URL"] == server.url
    assert thunder.attach(env["THUNDER_PROGRAM_CONTEXT"]).id == p.id
    assert "THUNDER_API_KEY" not in env
    with use_sdk(server.url, api_key="k"):
        assert p.env()["THUNDER_API_KEY"] == "k"
    with use_sdk():
        assert "THUNDER_BASE_URL" not in p.env()


def test_extra_body():
    with use_sdk(dialects=["thunder", "thunderagent"]):
        p = thunder.program(program_id="x")
        assert p.extra_body() == {"program_id": "x"}
        p.close()


def test_leaving_what_was_never_entered(server):
    p = thunder.program()
    p.__exit__(None, None, None)
    assert p.status == "terminated"
    assert server.requests == []


def test_another_librarys_loop_only_queues(server):
    """Driven by hand, as trio would: there is no asyncio loop to wait in."""
    p = thunder.program()
    for step in (p.__aenter__(), p.__aexit__(None, None, None)):
        with pytest.raises(StopIteration):
            step.send(None)
    assert thunder.flush(30)
    assert server.programs[p.id].outcome == "success"


def test_repr():
    assert repr(thunder.program("n", program_id="x")) == "<Program x 'n' active>"
    assert repr(thunder.program(program_id="x")) == "<Program x active>"
    assert repr(thunder.CURRENT) == "CURRENT"


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "x" * 201}, {"name": 7}, {"program_id": "a b"}, {"program_id": ".."}, {"program_id": 7},
        {"parent": "a/b"}, {"group": ""}, {"priority": 1.5}, {"priority": True}, {"tags": "nightly"},
        {"tags": 5}, {"tags": ["x"] * 101}, {"tags": ["x" * 201]}, {"parent": 5},
        {"parent": "a", "program_id": "a"}, {"priority": 2**31}, {"lease": 1e10},
        {"expected_context": 10**10},
        {"tags": [1]}, {"metadata": {"x": object()}}, {"metadata": [1]}, {"metadata": {"x": float("nan")}},
        {"expected_context": -1}, {"lease": 0}, {"max_wait": -1}, {"max_wait": float("nan")},
    ],
    ids=lambda arguments: next(iter(arguments)),
)  # fmt: skip
def test_mistakes_show_where_they_are_made(arguments):
    with pytest.raises(thunder.ThunderConfigError, match=next(iter(arguments))):
        thunder.program(**arguments)


def test_closing_in_another_thread(server):
    p = thunder.program().__enter__()
    thread = threading.Thread(target=p.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert p.outcome == "success"
    assert thunder.current_program() is None


def test_acting_blocks():
    p = thunder.program()
    block = p.acting("bash")
    with block as first:
        one = first.call_id
        with pytest.raises(thunder.ThunderStateError, match="runs already"):
            block.__enter__()
    with block as second:
        assert second.call_id != one
    for bad in ({"tool": ""}, {"tool": 7}, {"tool": None}):
        with pytest.raises(thunder.ThunderConfigError, match="tool"):
            p.acting(**bad)
    assert p.acting("x" * 5_000).tool == "x" * wire.MAX_TOOL
    for bad in (-1, 1e300):
        with pytest.raises(thunder.ThunderConfigError, match="expected"):
            p.acting("bash", expected=bad)
    p.close()


async def test_acting_on_the_current_program(server):
    with thunder.acting("nothing") as free:
        assert free.call_id.startswith("call_")
    async with thunder.program(), thunder.acting("browser"):
        pass
    p = thunder.program()
    with pytest.raises(ZeroDivisionError):
        async with p, thunder.acting("bash"):
            raise ZeroDivisionError
    assert [e["ok"] for e in server.events if e["type"] == "acting.finished"] == [True, False]
    assert p.outcome == "error"
