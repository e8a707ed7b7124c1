"""Backends that come, go, change and drain."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, dispatched, of_type
from thunder_server.core import PaperSettings
from thunder_server.core.decisions import Marked, Pause
from thunder_server.core.events import (
    BackendAdded,
    BackendDrained,
    BackendRemoved,
    BackendReported,
    CallEnd,
    CallProgressed,
)

KEEP = PaperSettings(decay=1.0)


@pytest.fixture
def h() -> Harness:
    h = Harness("passthrough")
    h.backend("a")
    h.backend("b")
    return h


def lose(h: Harness, kind, backend_id: str):
    return h.handle(kind(at=h.now, backend_id=backend_id))


def test_a_dead_backend_keeps_nobody(h):
    h.turn("p", 500)
    call = h.call("q", 100)
    running = h.call("p", 600)
    h.report("a", healthy=False)
    assert h.on("p") is None
    assert h.view("p")["tokens"]["context"] == 600, "its call may still hold that"
    assert h.running(running) == "a", "the runtime will say what became of it"
    assert h.running(call) == "b"
    h.fail(running, CallEnd.BACKEND_FAILED)
    assert h.view("p")["tokens"]["context"] == 0
    assert h.running(h.call("p", 600)) == "b"
    assert h.scheduler.counters.moves == 1


def test_a_returned_backend_is_used_again(h):
    h.report("a", healthy=False)
    h.report("a", healthy=False)
    h.report("a")
    assert h.running(h.call("p")) == "a"


def test_draining_moves_programs_at_their_next_call(h):
    h.turn("p", 100)
    running = h.call("p")
    lose(h, BackendDrained, "a")
    assert h.running(h.call("new")) == "b"
    assert h.on("p") == "a"
    moved = h.call("p")
    assert (h.running(running), h.running(moved), h.on("p")) == ("a", "b", "b")
    assert h.scheduler.backends["a"].used(h.now) > 0, "what still runs there is counted there"
    h.finish(running, 5)
    h.finish(moved, 200)
    assert h.scheduler.backends["a"].used(h.now) == 0
    assert h.view("p")["tokens"]["context"] == 200


def test_a_finish_elsewhere_is_context_but_not_resident(h):
    running = h.call("p")
    lose(h, BackendDrained, "a")
    moved = h.call("p")
    h.finish(moved, 100)
    h.call("p", 50)
    h.finish(running, 70)
    assert h.scheduler.program("p").context == 100


def test_adding_it_again_ends_draining_and_takes_the_new_figures(h):
    lose(h, BackendDrained, "a")
    h.handle(BackendAdded(at=0.0, backend_id="a", capacity_tokens=7, weight=2.0))
    backend = h.scheduler.backends["a"]
    assert (backend.draining, backend.capacity_tokens, backend.weight) == (False, 7, 2.0)


def test_a_removed_backend_is_gone_at_once(h):
    h.turn("p", 100)
    call = h.call("p", 200)
    lose(h, BackendRemoved, "a")
    assert "a" not in h.scheduler.backends
    assert len(h.scheduler.backends) == 1
    assert h.on("p") is None
    h.handle(CallProgressed(at=0.0, call_id=call, completion_tokens=5))
    h.backend("a")
    h.handle(CallProgressed(at=0.0, call_id=call, completion_tokens=9))
    h.fail(call, CallEnd.BACKEND_FAILED)
    assert h.scheduler.backends["a"].running == 0


@pytest.mark.parametrize("kind", [BackendDrained, BackendRemoved])
def test_what_happens_to_unknown_backends_did_not_happen(h, kind):
    assert lose(h, kind, "unheard-of") == []
    assert h.report("unheard-of") == []


def test_the_operators_capacity_wins(h):
    h.handle(BackendAdded(at=0.0, backend_id="c", capacity_tokens=500))
    h.report("c", 9000)
    assert h.scheduler.backends["c"].capacity_tokens == 500
    h.report("c", healthy=False)
    assert h.scheduler.backends["c"].capacity_tokens == 500


def test_a_capacity_that_is_told_no_longer_is_unknown():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    h.call("filler", 1000)
    waits = h.call("p", 500)
    assert dispatched(h.report("a", None)) == [waits]
    assert h.scheduler.backends["a"].capacity_tokens is None


def test_a_changed_capacity_counts_at_once():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    h.turn("p", 300)
    h.turn("q", 400)
    waits = h.call("r", 500)
    assert [d.program_id for d in of_type(h.report("a", 650), Pause)] == ["p"]
    assert dispatched(h.report("a", 900)) == [waits]


def test_only_backends_that_serve_the_model(h):
    h.report("a", models=frozenset({"m1"}))
    h.report("b", models=frozenset({"m2"}))
    assert h.running(h.call("p", model="m2")) == "b"
    assert h.running(h.call("p", model="m1")) == "a", "the program moves"
    assert h.running(h.call("q", model="m2")) == "b"
    assert h.running(h.call("q")) == "b"


def test_acting_programs_return_to_where_their_model_is():
    h = Harness("paper", KEEP)
    h.backend("a", 2000, models=frozenset({"m1"}))
    h.turn("p", 300, model="m1")
    h.turn("q", 500, model="m1")
    h.report("a", 600, models=frozenset({"m1"}))
    assert h.status("p") == ["paused"]
    h.backend("b", 1000, models=frozenset({"m2"}))
    assert h.status("p") == ["paused"]
    h.report("b", 1000, models=frozenset({"m1", "m2"}))
    assert h.on("p") == "b"


def test_calls_of_two_models_in_one_program_are_both_served():
    h = Harness("paper", KEEP)
    first, second = h.call("p", model="m1"), h.call("p", model="m2")
    h.backend("a", 1000, models=frozenset({"m1"}))
    assert (h.running(first), h.running(second)) == ("a", None)
    assert h.status("p") == ["active"]
    h.backend("b", 1000, models=frozenset({"m2"}))
    assert h.running(second) == "b"


def test_the_last_running_call_of_a_placeless_program_sends_it_to_the_queue():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    call = h.call("p")
    h.report("a", healthy=False)
    h.call("p")
    assert h.status("p") == ["active"]
    h.fail(call, CallEnd.BACKEND_FAILED)
    assert h.status("p") == ["paused"]


def test_a_mark_ends_with_the_place():
    h = Harness("paper", KEEP)
    h.backend("a", 10_000)
    h.call("p", 300)
    h.call("q", 400)
    h.report("a", 500)
    said = h.report("a", healthy=False)
    assert [(m.program_id, m.marked) for m in of_type(said, Marked)] == [("p", False)]


def test_heavier_backends_take_more(h):
    h.backend("b", weight=3.0)
    for n in range(8):
        h.call(f"p{n}")
    assert [len(h.scheduler.backends[b].programs) for b in "ab"] == [2, 6]


def test_the_view_shows_what_the_engine_says_and_else_what_we_sent(h):
    h.call("p", 250)
    backend = h.scheduler.backends["a"]
    assert h.scheduler.backend_view(backend) == {
        "id": "a",
        "healthy": True,
        "draining": False,
        "models": None,
        "capacity_tokens": 1000,
        "used_tokens": 250,
        "active_programs": 1,
        "running": 1,
        "waiting": 0,
        "hit_rate": None,
    }
    h.handle(
        BackendReported(
            at=0.0,
            backend_id="a",
            healthy=True,
            used_tokens=512,
            running=7,
            waiting=2,
            hit_rate=0.5,
            models=frozenset({"m2", "m1"}),
        )
    )
    told = h.scheduler.backend_view(backend)
    assert (told["used_tokens"], told["running"], told["waiting"], told["hit_rate"]) == (512, 7, 2, 0.5)
    assert told["models"] == ["m1", "m2"]
    h.report("a", healthy=False)
    assert h.scheduler.backend_view(backend)["waiting"] == 0
