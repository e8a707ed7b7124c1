"""``phase``: worked examples of who gets in, who waits and who has to go."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, dispatched, of_type
from thunder_server.core.decisions import Marked, Pause, Restore
from thunder_server.core.events import BackendReported, CallConnectFailed, Outcome
from thunder_server.core.policies.phase import OVERTAKING, PATIENCE_S, SLICE
from thunder_server.core.turnover import UNMEASURED_S


def phase(capacity: int = 1000, *others: int) -> Harness:
    h = Harness("phase", max_wait_s=1e6, auto_lease_s=1e6)
    for name, tokens in zip("abc", (capacity, *others), strict=False):
        h.backend(name, tokens)
    return h


def measured(h: Harness, backend: str = "a", lent_after_s: float = 10.0) -> None:
    """As if calls had told how fast an engine of 1000 tokens is."""
    h.scheduler.backends[backend].turnover.learn(seconds=lent_after_s, computed=1000, completion=0)


def paused(decisions) -> list[str]:
    return [decision.program_id for decision in of_type(decisions, Pause)]


# --- admission


def test_nobody_is_paused_while_everything_fits():
    h = phase(1000, 1000)
    for turn in range(5):
        for n in range(4):
            h.after(1.0).turn(f"p{n}", 100 + 60 * turn)
            h.acting(f"p{n}", expected_s=1e4)
    h.run_to(h.now + 500)
    assert h.status("p0", "p1", "p2", "p3") == ["active"] * 4
    assert of_type(h.decisions, Pause, Restore) == []


def test_newcomers_go_where_most_room_is_and_others_where_they_were():
    h = phase(1000, 1000)
    h.turn("p", 500)
    h.turn("q", 100)
    h.turn("r", 100)
    assert [h.on(p) for p in ("p", "q", "r")] == ["a", "b", "b"]


def test_first_come_first_served_within_a_priority():
    h = phase()
    full = h.call("full", 1000)
    for n, (program, priority) in enumerate([("x", 0), ("y", 0), ("z", 1)]):
        h.now = float(n)
        h.call(program, 400, priority=priority)
    assert h.running(full)
    said = h.close("full", Outcome.DROPPED)
    assert [decision.program_id for decision in of_type(said, Restore)] == ["z", "x"]


def test_a_lower_priority_gives_way_and_a_higher_one_does_not():
    h = phase()
    measured(h)
    h.turn("low", 600)
    assert h.running(h.call("high", 600, priority=1)) == "a"
    assert h.status("low") == ["paused"]
    assert "high has a higher priority" in h.view("low")["reason"]
    h = phase()
    measured(h)
    h.call("high", 600, priority=1)
    h.finish("c1", 600)
    h.acting("high", expected_s=1e5)
    assert h.running(h.call("low", 600)) is None


def test_a_finished_tool_gets_its_program_a_place_before_the_call():
    h = phase()
    h.turn("p", 600)
    h.acting("p", expected_s=1000.0)
    h.call("q", 600)
    assert h.status("p", "q") == ["paused", "active"]
    h.acted("p")
    assert h.view("p")["expects_call"]
    assert h.scheduler.why("p", h.now).queue_position == 1
    said = h.close("q", Outcome.DROPPED)
    assert [decision.program_id for decision in of_type(said, Restore)] == ["p"]
    assert h.running(h.call("p", 610)) == "a"


def test_if_there_is_room_by_then_it_has_its_place_the_moment_its_tool_has_finished():
    h = phase()
    h.turn("p", 600)
    h.acting("p", expected_s=1000.0)
    h.turn("q", 600)
    assert h.status("p") == ["paused"]
    h.close("q", Outcome.SUCCESS)
    said = h.acted("p")
    assert [decision.program_id for decision in of_type(said, Restore)] == ["p"]


def test_smaller_ones_overtake_but_only_for_a_while():
    h = phase()
    measured(h, lent_after_s=1000.0)  # nobody is away for long enough
    h.turn("full", 700)
    h.call("large", 800)
    small = h.call("small", 100)
    assert h.running(small) == "a"
    h.after(PATIENCE_S + 1)
    late = h.call("late", 100)
    assert h.running(late) is None
    # With the large one gone they come in.
    assert late in dispatched(h.close("large", Outcome.DROPPED))


def test_nor_does_a_lower_priority_overtake_for_ever():
    h = phase()
    measured(h, lent_after_s=1000.0)
    h.call("full", 700, priority=1)
    h.call("large", 800, priority=1)
    h.after(PATIENCE_S + 1)
    assert h.running(h.call("small", 100)) is None


def test_no_more_are_looked_at_than_a_few():
    h = phase()
    h.turn("full", 700)
    for n in range(OVERTAKING):
        h.call(f"large{n}", 800)
    assert h.running(h.call("small", 100)) is None


def test_one_whom_a_backend_refused_does_not_hold_up_the_others():
    h = phase(1000, 1000)
    h.turn("full", 900)
    refused = h.call("refused", 200)
    assert h.running(refused) == "b"
    h.handle(CallConnectFailed(at=h.now, call_id=refused, backend_id="b"))
    h.after(PATIENCE_S + 1)
    assert h.running(h.call("small", 50)) == "a"


def test_room_for_growth_is_kept_but_not_on_an_empty_backend():
    h = phase()
    measured(h, lent_after_s=1000.0)
    h.turn("p", 300)
    h.turn("p", 500)
    assert h.scheduler.why("p", h.now).free_tokens == pytest.approx(500 - 200)
    waits = h.call("q", 470)
    assert h.running(waits) is None
    assert dispatched(h.close("p", Outcome.SUCCESS)) == [waits]


def test_growth_never_keeps_more_than_half():
    h = phase()
    measured(h, lent_after_s=1000.0)
    for _ in range(4):
        h.turn("p", 50)
        h.turn("p", 900)
    h.turn("p", 100)
    assert h.scheduler.why("p", h.now).free_tokens == pytest.approx(400)


def test_a_backend_of_unknown_size_takes_everybody():
    h = phase()
    h.handle(BackendReported(at=0.0, backend_id="a", healthy=True, capacity_tokens=None))
    assert all(h.running(h.call(f"p{n}", 5000)) == "a" for n in range(5))


def test_an_empty_backend_that_is_too_small_is_none():
    h = phase(50, 1000)
    h.call("p", 900)
    assert h.running(h.call("q", 200)) is None


def test_what_no_backend_holds_goes_where_most_room_is():
    h = phase(1000, 2000)
    assert h.running(h.call("p", 5000)) == "b"


# --- reclaim


def test_who_will_be_away_for_long_gives_way():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=11.0)
    call = h.call("q", 600)
    assert (h.running(call), h.status("p")) == ("a", ["paused"])
    assert "away for 11 s, and q waits" in h.view("p")["reason"]


def test_who_will_be_back_soon_stays():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=9.0)
    assert h.running(h.call("q", 600)) is None
    assert h.status("p") == ["active"]


def test_who_is_away_for_long_stays_while_nobody_wants_the_room():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=1e5)
    h.run_to(1000.0)
    assert h.running(h.call("q", 300)) == "a"
    assert h.status("p") == ["active"]


@pytest.mark.parametrize("told", [True, False])
def test_without_an_expectation_time_tells(told):
    h = phase()
    measured(h)
    h.turn("p", 600)
    if told:
        h.acting("p")
    call = h.call("q", 600)
    assert h.running(call) is None
    said = h.run_to(9.9)
    assert dispatched(said) == []
    assert dispatched(h.run_to(12.0)) == [call]


def test_lateness_grows_into_a_long_absence():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=5.0)
    call = h.call("q", 600)
    assert dispatched(h.run_to(14.0)) == []
    assert dispatched(h.run_to(17.0)) == [call]


def test_of_tools_side_by_side_the_last_one_counts():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", "t1", expected_s=1.0)
    h.acting("p", "t2", expected_s=100.0)
    assert h.running(h.call("q", 600)) == "a"


def test_a_call_that_does_not_come_is_not_waited_for_for_ever():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=5.0)
    h.run_to(5.0)
    h.acted("p")
    call = h.call("q", 600)
    assert dispatched(h.run_to(14.0)) == []
    assert dispatched(h.run_to(17.0)) == [call]


def test_the_longest_idle_go_first_and_no_more_than_needed():
    h = phase()
    measured(h)
    for n, program in enumerate(("p", "q", "r")):
        h.now = float(n)
        h.turn(program, 300)
        h.acting(program, expected_s=1e4)
    h.call("new", 350)
    assert h.status("p", "q", "r") == ["paused", "active", "active"]


def test_where_the_least_has_to_go():
    h = phase(1000, 1000)
    measured(h, "a")
    measured(h, "b")
    h.turn("p", 900)
    h.turn("q", 700)
    h.acting("p", expected_s=1e4)
    h.acting("q", expected_s=1e4)
    assert h.running(h.call("new", 500)) == "b"
    assert h.status("p", "q") == ["active", "paused"]


def test_waits_are_bounded_by_time_slices():
    """Nobody is ever away for long, so that room comes only from slices that are over."""
    h = phase()
    call = h.call("q", 100)
    h.finish(call, 600)
    waits = h.call("p", 600)
    slice_s = SLICE * UNMEASURED_S
    while h.now < slice_s - 20:
        h.acting("q", expected_s=10.0)
        h.run_to(h.now + 10.0)
        h.turn("q", 600)
    assert h.running(waits) is None
    while h.running(waits) is None:
        assert h.now < slice_s + 30
        h.turn("q", 600)
        h.run_to(h.now + 10.0)
    assert f"time slice of {slice_s:.0f} s is over" in h.view("q")["reason"]


def test_who_needs_nearly_all_of_it_gets_it_although_the_others_never_rest_at_once():
    h = phase()
    measured(h)
    running = [h.call(f"p{n}", 300) for n in range(3)]
    waits = h.call("large", 900)
    for turn in range(100):
        if h.running(waits):
            break
        resting = turn % 3  # while its tool runs, the others call
        h.after(5.0).finish(running[resting], 300)
        h.acting(f"p{resting}", call_id=str(turn), expected_s=2.0)
        h.run_to(h.now + 2.0)
        h.acted(f"p{resting}", call_id=str(turn))
        running[resting] = h.call(f"p{resting}", 300)
    assert PATIENCE_S < h.now < PATIENCE_S + 30
    assert h.status("p0", "p1", "p2") == ["paused"] * 3


def test_a_tool_that_nobody_set_a_time_for_takes_what_it_usually_takes():
    h = phase()
    measured(h)
    for n in range(5):
        h.acting("teacher", f"t{n}", tool="pytest")
        h.run_to(h.now + 40.0)
        h.acted("teacher", f"t{n}")
    h.turn("p", 600)
    h.acting("p", tool="pytest")
    assert h.running(h.call("q", 600)) == "a"
    assert "away for 40 s" in h.view("p")["reason"]


def test_silence_longer_than_nearly_all_others_were_silent_means_gone():
    h = phase(2000)
    measured(h)
    for _ in range(30):
        h.after(2.0).turn("teacher", 300)
    h.close("teacher", Outcome.SUCCESS)
    h.turn("p", 1600)
    h.run_to(h.now + 3.0)
    assert h.running(h.call("q", 600)) == "a"
    assert h.status("p") == ["paused"]


def test_who_was_paused_before_has_a_longer_slice():
    h = phase()
    measured(h)
    slice_s = SLICE * 10.0
    h.turn("p", 600)
    h.scheduler.program("p").pauses = 1
    waits = h.call("q", 600)
    while h.now < 2 * slice_s - 5:
        h.acting("p", expected_s=2.0)
        h.run_to(h.now + 2.0)
        h.turn("p", 600)
    assert h.running(waits) is None
    while h.running(waits) is None:
        assert h.now < 2 * slice_s + 10
        h.acting("p", expected_s=2.0)
        h.run_to(h.now + 2.0)
        h.turn("p", 600)


def test_programs_whose_calls_are_overdue_do_not_take_turns():
    """Their tools have finished and no call comes: each would be worth pausing for the other, for ever."""
    h = phase()
    measured(h)
    for program in ("p", "q"):
        h.turn(program, 600)
        h.acting(program, expected_s=1e4)
    assert h.status("p", "q") == ["paused", "active"]
    h.acted("p")
    h.acted("q")
    h.run_to(200.0)
    # q made room for p while its own tool still ran.
    assert paused(h.decisions) == ["p", "q"]
    assert h.running(h.call("p", 600)) == "a"
    assert h.status("p", "q") == ["active", "paused"]
    h.run_to(400.0)
    assert len(of_type(h.decisions, Pause)) == 2


def test_who_was_given_room_for_an_overdue_call_has_it_for_an_instant():
    h = phase()
    measured(h)
    h.turn("p", 600)
    h.acting("p", expected_s=1e4)
    h.call("full", 1000)
    h.acted("p")
    h.after(1.0)
    call = h.call("q", 600)
    h.after(100.0).close("full", Outcome.DROPPED)
    assert h.status("p", "q") == ["active", "paused"]
    h.run_to(h.now + 1.0)
    assert h.running(call) == "a"


def test_many_that_are_overdue_do_not_either():
    h = phase(1000, 1000)
    measured(h, "a")
    measured(h, "b")
    names = [f"p{n}" for n in range(20)]
    for name in names:
        h.turn(name, 300)
        h.acting(name, expected_s=1e4)
    for name in names:
        h.acted(name)
    h.run_to(300.0)
    before = len(of_type(h.decisions, Pause))
    h.run_to(600.0)
    assert len(of_type(h.decisions, Pause)) == before


# --- patience with the cache


def left_behind(idle_for_s: float) -> Harness:
    """Of 1000 tokens 300 are p's, which was there first, and 400 were left by one that has ended."""
    h = phase()
    measured(h)
    h.turn("p", 300)
    h.acting("p", expected_s=idle_for_s)
    h.after(0.1).turn("gone", 400)
    h.close("gone", Outcome.SUCCESS)
    return h


def test_what_would_displace_who_is_soon_back_waits():
    h = left_behind(2.0)
    assert h.running(h.call("fits", 300)) == "a"
    h.close("fits", Outcome.DROPPED)
    call = h.call("q", 500)
    assert h.running(call) is None
    h.run_to(2.0)
    h.turn("p", 300)
    assert h.running(call) == "a"


def test_but_not_for_one_that_stays_away_for_longer_than_its_context_is_worth():
    h = left_behind(9.0)
    assert h.running(h.call("q", 500)) == "a"
    assert h.status("p") == ["active"]


def test_nor_where_what_was_used_least_recently_has_to_leave_anyway():
    h = left_behind(1e4)
    h.acting("p", "t2", expected_s=1e4)
    assert h.running(h.call("q", 1000)) == "a"
    assert h.status("p") == ["paused"]


def test_several_idle_programs_are_waited_for_as_far_as_they_are_displaced():
    h = phase()
    measured(h)
    for n, program in enumerate("uvw"):
        h.now = n / 10
        h.turn(program, 100)
        h.acting(program, expected_s=6.0 if program == "v" else 1.0)
    h.turn("gone", 600)
    h.close("gone", Outcome.SUCCESS)
    # 250 of 350 would displace u, v and half of w; it takes v for as long as it is worth to wait.
    assert h.running(h.call("q", 350)) is None
    h.close("v", Outcome.DROPPED)
    assert h.running(h.call("r", 50)) == "a"


# --- overflow


def test_when_contexts_outgrow_a_backend_the_longest_idle_leave():
    h = phase()
    for n, program in enumerate(("p", "q", "r")):
        h.now = float(n)
        h.turn(program, 300)
    h.turn("r", 500)
    said = h.run_to(5.0)
    assert paused(said) == ["p"]
    assert h.used("a") == 800


def test_then_reasoning_ones_when_their_calls_end_and_only_as_needed():
    h = phase()
    calls = {program: h.call(program, 300) for program in ("p", "q", "r")}
    h.finish(calls["p"], 300)
    grown = h.call("p", 700)
    said = h.run_to(2.0)
    marks = of_type(said, Marked)
    assert [(mark.program_id, mark.marked) for mark in marks] == [("q", True)]
    # Room again: the mark is lifted.
    h.finish(calls["r"], 300)
    h.close("r", Outcome.SUCCESS)
    assert h.status("q") == ["active"]
    h.finish(calls["q"], 300)
    h.finish(grown, 700)
    assert h.status("p", "q") == ["active", "active"]


def test_a_mark_moves_to_who_can_go_at_once():
    h = phase()
    calls = {program: h.call(program, 300) for program in ("p", "q", "r")}
    h.finish(calls["p"], 300)
    h.call("p", 700)
    h.run_to(2.0)
    assert h.scheduler.program("q").state == "marked"
    h.finish(calls["r"], 300)
    said = h.run_to(4.0)
    assert paused(said) == ["r"]
    assert h.scheduler.program("q").state == "placed"
