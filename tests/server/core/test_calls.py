"""The life of calls: every way to end settles phase and tokens, and there is exactly one end."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, dispatched, ends, of_type
from thunder_server.core import CapSettings
from thunder_server.core.decisions import Cancel, Dispatch, PhaseChanged, Refusal, Refuse, Terminate
from thunder_server.core.events import (
    BackendRemoved,
    CallConnectFailed,
    CallEnd,
    CallFinished,
    CallProgressed,
    Outcome,
)

EVERY_POLICY = pytest.mark.parametrize("policy", ["passthrough", "cap", "paper", "phase"])


@pytest.fixture
def h() -> Harness:
    h = Harness("passthrough")
    h.backend("a")
    return h


def full() -> tuple[Harness, str]:
    """A full backend and the call that fills it."""
    h = Harness("paper")
    h.backend("a", 1000)
    return h, h.call("filler", 1000)


def refusal(decisions) -> tuple[str, Refusal]:
    (decision,) = of_type(decisions, Refuse, Cancel)
    return decision.call_id, decision.refusal


def connect_failed(h: Harness, call_id: str, backend_id: str):
    return h.handle(CallConnectFailed(at=h.now, call_id=call_id, backend_id=backend_id))


# --- ends


@EVERY_POLICY
def test_the_shortest_life(policy):
    h = Harness(policy)
    h.backend("a")
    call = h.call("p")
    assert [type(d).__name__ for d in h.decisions] == ["Opened", "PhaseChanged", "Dispatch"]
    assert [type(d).__name__ for d in h.finish(call)] == ["PhaseChanged"]
    assert [type(d).__name__ for d in h.run_to(600.0)] == ["Terminate"]
    assert [type(d).__name__ for d in h.run_to(1200.0)] == ["Forget"]
    assert not h.scheduler.programs


@pytest.mark.parametrize(
    ("end", "failed", "cancelled"),
    [
        (CallEnd.ENGINE_REFUSED, 1, 0),
        (CallEnd.BACKEND_FAILED, 1, 0),
        (CallEnd.CLIENT_GONE, 0, 1),
        (CallEnd.CANCELLED, 0, 1),
        (CallEnd.COMPLETED, 0, 0),
    ],
)
def test_every_end_settles(h, end, failed, cancelled):
    h.turn("p", 300)
    call = h.call("p", 900)
    h.handle(CallProgressed(at=h.now, call_id=call, completion_tokens=50))
    said = h.fail(call, end)
    assert [d.phase for d in of_type(said, PhaseChanged)] == ["acting"]
    view = h.view("p")
    assert view["phase"] == "acting"
    assert view["calls"] == {"total": 2, "running": 0, "waiting": 0, "failed": failed, "cancelled": cancelled}
    # Without usage a 2xx leaves what was guessed, anything else leaves the context as it was.
    assert view["tokens"]["context"] == (950 if end is CallEnd.COMPLETED else 300)
    assert h.scheduler.counters.calls_ended[end] == (2 if end is CallEnd.COMPLETED else 1)


def test_usage_is_what_counts(h):
    h.finish(h.call("p", 10), 1200, 34, cached=1000)
    h.finish(h.call("p", 10), 1300, 66, cached=1200)
    assert h.view("p")["tokens"] == {"context": 1366, "prompt": 2500, "completion": 100, "cached": 2200}
    assert h.scheduler.counters.tokens.prompt == 2500


def test_contexts_may_shrink(h):
    h.turn("p", 900)
    h.turn("p", 100)
    assert h.view("p")["tokens"]["context"] == 100


def test_a_stream_that_gives_no_completion_tokens_counts_what_was_seen(h):
    call = h.call("p", 100)
    h.handle(CallProgressed(at=h.now, call_id=call, completion_tokens=40))
    h.handle(CallProgressed(at=h.now, call_id=call, completion_tokens=30))
    h.finish(call, 100, None)
    assert h.view("p")["tokens"]["context"] == 140


def test_parallel_calls_do_not_overwrite_each_other(h):
    h.turn("p", 500)
    first, second = h.call("p", 600), h.call("p", 700)
    assert h.used("a") == 500 + 100 + 200
    assert h.view("p")["tokens"]["context"] == 800
    h.finish(second, 700, 10)
    assert h.view("p")["phase"] == "reasoning"
    assert h.view("p")["tokens"]["context"] == 710
    h.finish(first, 600, 50)
    assert h.view("p")["tokens"]["context"] == 710, "the one dispatched last is the context"
    assert h.view("p")["phase"] == "acting"


def test_an_end_that_comes_twice_or_for_nobody_is_ignored(h):
    call = h.call("p")
    h.finish(call)
    assert h.finish(call) == []
    assert h.finish("unheard-of") == []
    assert h.handle(CallProgressed(at=h.now, call_id=call, completion_tokens=9)) == []
    assert connect_failed(h, call, "a") == []
    assert h.scheduler.call(call) is None


def test_a_client_that_leaves_the_queue_is_never_dispatched():
    h, filler = full()
    waits, next_one = h.call("p", 700), h.call("q", 800)
    h.fail(waits, CallEnd.CLIENT_GONE)
    assert h.view("p")["phase"] == "acting"
    assert dispatched(h.finish(filler, 100)) == [next_one]


def test_what_was_due_before_a_client_left_does_not_dispatch_its_call():
    h = Harness("paper")
    h.backend("a", 1000)
    h.turn("fading", 1000)
    waits = h.call("p", 500)
    h.after(6.0)
    said = h.fail(waits, CallEnd.CLIENT_GONE)
    assert of_type(said, Dispatch) == []


def test_untagged_calls_never_share_a_program(h):
    one, two = h.call(None, priority=4), h.call(None)
    assert len(h.scheduler.programs) == 2
    assert h.view(f"anonymous-{one}")["priority"] == 4
    said = h.finish(one)
    assert [type(d).__name__ for d in said] == ["PhaseChanged", "Terminate", "Forget"]
    h.fail(two, CallEnd.BACKEND_FAILED)
    assert not h.scheduler.programs
    assert h.scheduler.next_deadline() is None


# --- waiting


def test_a_call_waits_as_long_as_it_says_then_its_program_then_the_server():
    h, _ = full()
    h.put("patient", max_wait_s=100.0)
    waits = [h.call("patient", 500, max_wait_s=10.0), h.call("patient", 500), h.call("other", 500)]
    for call, seconds in zip(waits, (10.0, 100.0, 540.0), strict=True):
        assert ends(h.run_to(seconds - 0.1)) == []
        said = h.run_to(seconds)
        assert refusal(said) == (call, Refusal.ADMISSION_TIMEOUT)
        assert of_type(said, Refuse)[0].retry_after_s > 0
    assert h.view("patient")["calls"]["failed"] == 2
    assert h.view("patient")["wait"] == {"current_s": 0.0, "total_s": 110.0, "max_s": 100.0}


def test_a_call_that_will_not_wait_is_served_now_or_refused_now():
    h, filler = full()
    call = h.call("p", 100, max_wait_s=0.0)
    assert refusal(h.decisions) == (call, Refusal.ADMISSION_TIMEOUT)
    assert "no backend has room" in of_type(h.decisions, Refuse)[0].message
    h.finish(filler, 100)
    assert h.running(h.call("p", 100, max_wait_s=0.0)) == "a"


def test_waits_are_told_while_they_last_and_afterwards():
    h, filler = full()
    h.call("p", 500)
    h.after(4.0)
    assert h.view("p")["wait"] == {"current_s": 4.0, "total_s": 4.0, "max_s": 4.0}
    said = h.finish(filler, 100)
    assert of_type(said, Dispatch)[0].waited_s == 4.0
    assert h.view("p")["wait"] == {"current_s": 0.0, "total_s": 4.0, "max_s": 4.0}
    assert h.scheduler.counters.waited_s == 4.0


# --- no backend


def test_a_call_that_will_not_wait_is_told_that_nobody_is_there():
    h = Harness("paper")
    h.call("p", max_wait_s=0.0)
    assert "no healthy backend" in of_type(h.decisions, Refuse)[0].message


def test_calls_hope_five_seconds_for_a_backend():
    h = Harness("paper")
    h.after(1.0).call("early")
    h.run_to(4.0)
    late = h.call("late")
    assert ends(h.run_to(5.9)) == []
    said = h.run_to(6.0)
    assert {r.refusal for r in of_type(said, Refuse)} == {Refusal.NO_BACKEND}
    assert late in ends(said)
    assert h.call("too-late") in ends(h.decisions), "there is no hope left to have"


def test_a_backend_that_comes_in_time_serves_them():
    h = Harness("paper")
    call = h.call("p")
    h.run_to(4.9)
    assert call in dispatched(h.backend("a"))


def test_a_model_that_no_healthy_backend_serves_waits_for_one_too():
    h = Harness("paper")
    h.backend("a", models=frozenset({"m1"}))
    h.run_to(100.0)
    call = h.call("p", model="m2")
    assert h.running(h.call("q", model="m1")) == "a"
    assert ends(h.run_to(104.9)) == []
    (refuse,) = of_type(h.run_to(105.0), Refuse)
    assert (refuse.call_id, refuse.refusal) == (call, Refusal.NO_BACKEND)
    assert "'m2'" in refuse.message


def test_a_refused_connection_goes_elsewhere_with_its_program():
    h = Harness("passthrough")
    h.backend("a")
    h.backend("b")
    h.turn("p", 500)
    call = h.call("p", 600)
    assert h.running(call) == "a"
    assert of_type(connect_failed(h, call, "a"), Dispatch)[0].backend_id == "b"
    assert h.on("p") == "b"
    assert not h.scheduler.backends["a"].healthy
    assert connect_failed(h, call, "a") == [], "that one is over"
    assert refusal(connect_failed(h, call, "b")) == (call, Refusal.BACKEND_ERROR)
    assert h.view("p")["calls"]["failed"] == 1


def test_a_refused_connection_waits_where_there_is_no_room_elsewhere():
    h = Harness("paper")
    h.backend("a", 1000)
    h.backend("b", 1000)
    call = h.call("p", 500)
    filler = h.call("filler", 900)
    h.after(2.0)
    assert dispatched(connect_failed(h, call, "a")) == []
    assert h.status("p") == ["paused"]
    h.report("a", 1000)
    assert h.running(call) is None, "the one that refused is not asked again while there is another"
    assert dispatched(h.finish(filler, 100)) == [call]
    assert h.view("p")["wait"]["total_s"] == 2.0, "what the refused connection took is waiting, too"


def test_a_call_refused_by_all_that_is_left_asks_what_has_come_back():
    h = Harness("paper")
    h.backend("a", 1000)
    h.backend("b", 1000)
    call = h.call("p", 500)
    h.call("filler", 900)
    connect_failed(h, call, "a")
    h.report("a", 1000)
    assert dispatched(h.report("b", healthy=False)) == [call]
    assert h.running(call) == "a"


def test_a_backend_removed_meanwhile_may_refuse_too():
    h = Harness("passthrough")
    h.backend("a")
    h.backend("b")
    call = h.call("p")
    h.handle(BackendRemoved(at=h.now, backend_id="a"))
    assert of_type(connect_failed(h, call, "a"), Dispatch)[0].backend_id == "b"


# --- retries


@pytest.mark.parametrize("waiting", [False, True])
def test_a_retry_supersedes_its_first_attempt(waiting):
    h, filler = full()
    if not waiting:
        h.finish(filler, 0)
    first = h.call("p", 500, digest=b"same")
    retry = h.call("p", 500, digest=b"same", is_retry=True)
    assert refusal(h.decisions) == (first, Refusal.SUPERSEDED)
    assert isinstance(of_type(h.decisions, Refuse, Cancel)[0], Refuse if waiting else Cancel)
    assert h.running(retry) == (None if waiting else "a")
    view = h.view("p")
    assert view["calls"]["total"] == 1
    assert view["calls"]["failed"] == view["calls"]["cancelled"] == 0


def test_identical_calls_run_side_by_side_unless_the_first_is_old(h):
    first, second = h.call("p", digest=b"x"), h.call("p", digest=b"x")
    h.call("p", digest=b"y", is_retry=True)
    h.call("q", digest=b"x", is_retry=True)
    h.call("p", is_retry=True)
    assert ends(h.decisions) == []
    h.after(61.0)
    h.call("p", digest=b"x")
    assert ends(h.decisions) == [first]
    h.call("p", digest=b"x")
    assert ends(h.decisions) == [first, second]


def test_a_retry_keeps_its_place_in_the_queue():
    h = Harness("cap", CapSettings(programs=1))
    h.backend("a")
    h.call("filler")
    for program in ("first", "second"):
        h.after(1.0).call(program, digest=b"x")
    h.after(1.0).call("first", digest=b"x", is_retry=True)
    h.close("filler", Outcome.DROPPED)
    assert h.status("first", "second") == ["active", "paused"]


def test_a_retry_finds_its_first_attempt_in_the_generation_before(h):
    first = h.call("p", digest=b"x")
    h.close("p", Outcome.SUCCESS)
    h.call("p", digest=b"x", is_retry=True)
    assert refusal(h.decisions) == (first, Refusal.SUPERSEDED)
    assert h.view("p")["generation"] == 2
    assert [t.generation for t in of_type(h.decisions, Terminate)] == [1]


# --- the last call


@pytest.mark.parametrize("end", list(CallEnd))
def test_a_final_call_ends_its_program_however_it_ends(h, end):
    said = h.fail(h.call("p", final=True), end)
    assert [t.outcome for t in of_type(said, Terminate)] == [Outcome.SUCCESS]
    assert h.status("p") == ["terminated"]


def test_a_final_call_that_is_refused_ends_its_program_too():
    h, _ = full()
    h.call("p", 500, final=True, max_wait_s=0.0)
    assert h.status("p") == ["terminated"]


def test_a_final_call_that_a_retry_replaces_does_not(h):
    h.call("p", final=True, digest=b"x")
    h.call("p", final=True, digest=b"x", is_retry=True)
    assert h.status("p") == ["active"]


def test_what_runs_beside_a_final_call_finishes(h):
    final, other = h.call("p", final=True), h.call("p")
    h.finish(final)
    assert (h.view("p")["closing"], h.status("p")) == (True, ["active"])
    h.finish(other)
    assert (h.view("p")["closing"], h.status("p")) == (False, ["terminated"])


def test_time_that_goes_back_stands_still(h):
    h.after(10.0).call("p")
    said = h.handle(CallFinished(at=3.0, call_id="c1", end=CallEnd.COMPLETED))
    assert of_type(said, PhaseChanged)
    assert h.scheduler.program("p").acting_since == 10.0
