"""While the engines get new weights nothing is dispatched, and afterwards no KV from before counts."""

import pytest

from tests.server.core.harness import Harness
from thunder_server.core.decisions import Dispatch, Held, Refuse, Resumed
from thunder_server.core.events import WeightSyncBegan, WeightSyncEnded

POLICIES = pytest.mark.parametrize("policy", ["passthrough", "cap", "paper", "phase"])


def begin(h: Harness, watchdog_s: float = 300.0) -> list:
    return h.handle(WeightSyncBegan(at=h.now, watchdog_s=watchdog_s))


def end(h: Harness) -> list:
    return h.handle(WeightSyncEnded(at=h.now))


def sent(decisions: list) -> list[str]:
    return [decision.call_id for decision in decisions if isinstance(decision, Dispatch)]


@POLICIES
def test_calls_wait_until_it_is_over(policy: str) -> None:
    h = Harness(policy)
    h.backend("a")
    h.turn("old", 100)
    running = h.call("busy", 100)
    assert [type(decision) for decision in begin(h)][:1] == [Held]
    known, new = h.call("old", 120), h.call("new", 50)
    assert not sent(h.decisions[-2:])
    h.finish(running, 100)
    assert h.scheduler.running_calls == 0
    assert h.scheduler.waiting_calls == 2
    assert h.scheduler.program("old").status == "paused"
    assert h.scheduler.program("old").reason == "the engines are getting new weights"
    assert h.scheduler.why("old", h.now).waiting_for == "the engines to get their new weights"
    assert set(sent(h.after(10).handle(WeightSyncEnded(at=h.now)))) == {known, new}
    assert not h.scheduler.held


def test_no_kv_from_before_counts_afterwards() -> None:
    h = Harness("phase")
    h.backend("a")
    h.turn("p", 700)
    assert h.scheduler.view(h.scheduler.program("p"), h.now)["tokens"]["context"] == 700
    begin(h)
    end(h)
    view = h.scheduler.view(h.scheduler.program("p"), h.now)
    assert (view["tokens"]["context"], view["backend"], view["status"]) == (0, None, "active")
    assert sent([*h.decisions, *h.run_to(1)])  # nothing is forgotten of what was sent before
    h.call("other", 900)  # its room is free
    assert h.scheduler.waiting_calls == 0


def test_it_begins_and_ends_once() -> None:
    h = Harness()
    assert end(h) == []
    assert begin(h)
    assert begin(h) == []
    (resumed,) = (decision for decision in end(h.after(7)) if isinstance(decision, Resumed))
    assert resumed.held_s == 7
    assert end(h) == []


def test_a_watchdog_ends_what_nobody_ends() -> None:
    h = Harness()
    h.backend("a")
    begin(h, watchdog_s=300)
    h.run_to(200)
    begin(h, watchdog_s=300)  # again: it has its time anew
    call = h.call("p")
    assert not sent(h.run_to(499))
    told = h.run_to(500)
    assert sent(told) == [call]
    assert any("watchdog" in decision.reason for decision in told if isinstance(decision, Resumed))
    assert not h.run_to(900)  # nor does it come a second time


def test_who_would_not_wait_is_told_why() -> None:
    h = Harness()
    h.backend("a")
    begin(h)
    h.call("p", max_wait_s=0)
    (refuse,) = (decision for decision in h.decisions if isinstance(decision, Refuse))
    assert "new weights" in refuse.message


def test_a_program_with_a_running_call_stays_active() -> None:
    h = Harness("phase")
    h.backend("a")
    first = h.call("p", 100)
    begin(h)
    second = h.call("p", 120)
    assert h.scheduler.program("p").status == "active"
    h.finish(first, 100)
    assert h.scheduler.program("p").status == "paused"
    assert sent(end(h)) == [second]


def test_what_no_backend_holds_goes_when_it_is_over() -> None:
    h = Harness("phase")
    h.backend("a", 100)
    begin(h)
    large = h.call("p", 5000)
    assert h.scheduler.waiting_calls == 1
    assert sent(end(h)) == [large]
