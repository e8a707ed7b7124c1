"""What is told about programs, in the words of the control plane."""

from __future__ import annotations

from tests.server.core.harness import Harness
from thunder_server.core.events import Outcome


def test_the_program_object_has_exactly_the_fields_of_the_contract():
    h = Harness("paper")
    h.put("p")
    view = h.view("p")
    assert set(view) == {
        *("id", "name", "group", "parent_id", "priority", "tags", "metadata", "status", "phase"),
        *("expects_call", "closing", "outcome", "reason", "generation", "backend", "tokens", "calls"),
        *("wait", "acting", "resources", "lease_s", "lease_left_s", "opened_at"),
    }
    assert set(view["tokens"]) == {"context", "prompt", "completion", "cached"}
    assert set(view["calls"]) == {"total", "running", "waiting", "failed", "cancelled"}
    assert set(view["wait"]) == {"current_s", "total_s", "max_s"}


def test_why_a_program_waits():
    h = Harness("paper")
    h.backend("a", 1000)
    h.call("filler", 900)
    h.call("first", 300)
    h.call("second", 400)
    why = h.scheduler.why("second", h.now)
    assert (why.status, why.reason) == ("paused", "no backend has room")
    assert why.waiting_for == "room for 400 tokens; the most on any backend is 100"
    assert (why.queue_position, why.needed_tokens, why.free_tokens) == (2, 400, 100)
    assert [chapter.decision for chapter in why.decisions] == ["opened", "pause"]
    assert h.scheduler.why("first", h.now).queue_position == 1
    assert h.scheduler.queued_programs == h.scheduler.waiting_calls == 2


def test_what_a_program_waits_for():
    h = Harness("paper")

    def waits_for(program="p"):
        return h.scheduler.why(program, h.now).waiting_for

    call = h.call("p")
    assert waits_for() == "a healthy backend"
    h.backend("a", 1000, models=frozenset({"m1"}))
    assert waits_for() is None
    h.finish(call)
    assert waits_for() == "its next call"
    h.acting("p", tool="pytest")
    assert waits_for() == "the end of pytest"
    h.call("q", model="m2")
    assert waits_for("q") == "a healthy backend that serves 'm2'"
    h.call("big", 800)
    h.call("r", 500)
    h.report("a", 600, models=frozenset({"m1"}))
    h.call("big", 800)
    h.close("p", Outcome.DROPPED)
    assert waits_for() is None
    assert h.scheduler.why("p", h.now).reason == "it was dropped"


def test_what_a_program_waits_for_without_tokens():
    h = Harness("cap")
    h.backend("a")
    for n in range(33):
        h.call(f"p{n}")
    assert h.scheduler.why("p32", h.now).waiting_for == "a free slot on a backend"


def test_further_calls_of_a_marked_program_wait_for_its_own():
    h = Harness("paper")
    h.backend("a", 10_000)
    h.call("p", 300)
    h.call("q", 400)
    h.report("a", 500)
    h.call("p", 300)
    assert h.scheduler.why("p", h.now).waiting_for == "its own running calls"
