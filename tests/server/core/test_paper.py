"""The published algorithm, by its worked numbers."""

from __future__ import annotations

import itertools
import sys
from math import inf

import pytest

from tests.server.core.harness import Harness, dispatched, of_type, paper
from thunder_server.core import PaperSettings, Phase
from thunder_server.core.backend import DecayedSum
from thunder_server.core.decisions import Dispatch, Marked, Pause, Restore
from thunder_server.core.events import CallEnd, CallProgressed, Outcome
from thunder_server.core.policies.paper import pause_score, restore_score, shortest_first
from thunder_server.core.program import Program

KEEP = PaperSettings(decay=1.0)  # acting programs weigh in full, for plain arithmetic


def program(context: int) -> Program:
    return Program(id=f"p{context}", generation=1, opened_at=0.0, lease_s=60.0, context=context)


# --- the formulas


@pytest.mark.parametrize(("seconds", "share"), [(0, 1), (1, 1 / 2), (5, 1 / 32), (10, 1 / 1024)])
def test_f_halves_every_second(seconds, share):
    fading = DecayedSum(2.0)
    fading.add(1024.0, since=0.0, at=0.0)
    assert fading.value(seconds) == pytest.approx(1024 * share)


def test_f_is_memoryless_so_sums_of_different_ages_fade_as_one():
    fading = DecayedSum(2.0)
    fading.add(100.0, since=0.0, at=0.0)
    fading.add(80.0, since=3.0, at=4.0)
    assert fading.value(6.0) == pytest.approx(100 / 64 + 80 / 8)
    fading.remove(100.0, since=0.0, at=7.0)
    assert fading.value(7.0) == pytest.approx(80 / 16)
    fading.remove(80.0, since=3.0, at=8.0)
    assert fading.value(8.0) == 0


def test_scores_put_the_state_before_the_length():
    assert restore_score(4, Phase.REASONING) == 1.25
    assert restore_score(4, Phase.ACTING) == 0.25
    assert pause_score(4, Phase.ACTING) == 1.25
    assert pause_score(4, Phase.REASONING) == 0.25
    assert pause_score(100_000, Phase.ACTING) > pause_score(2, Phase.REASONING)
    assert restore_score(100_000, Phase.REASONING) > restore_score(2, Phase.ACTING)
    assert restore_score(0, Phase.ACTING) == 1


def test_shortest_first_is_greedy_and_that_is_not_always_the_cheapest():
    nine, ten = program(9), program(10)
    chosen = shortest_first([(9, nine), (10, ten)], release=10)
    assert sum(p.context**2 for p in chosen) == 181
    subsets = itertools.chain.from_iterable(itertools.combinations([9, 10], n) for n in (1, 2))
    assert min(sum(c * c for c in subset) for subset in subsets if sum(subset) >= 10) == 100


def test_shortest_first_takes_no_more_than_it_takes():
    assert shortest_first([(3, program(3)), (4, program(4)), (5, program(5))], release=7) != []
    assert [p.context for p in shortest_first(((c, program(c)) for c in (3, 4, 5)), 7)] == [3, 4]
    assert shortest_first([(3, program(3))], 0) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"interval_s": 0}, "interval"),
        ({"interval_s": inf}, "interval"),
        ({"decay": 0.5}, "decay"),
        ({"lambda_min": 0}, "lambda"),
        ({"lambda_min": 0.9, "lambda_max": 0.8}, "lambda"),
        ({"lambda_max": inf}, "lambda"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong, named):
    with pytest.raises(ValueError, match=named):
        PaperSettings(**wrong)


# --- pausing


def overflowing(contexts: list[int], capacity: int, settings=KEEP) -> tuple[Harness, list[str]]:
    """A backend whose programs, all running, have grown past its capacity."""
    h = Harness("paper", settings)
    h.backend("a", 10**6)
    calls = [h.call(f"p{n}", context) for n, context in enumerate(contexts)]
    h.report("a", capacity)
    return h, calls


def test_at_the_limit_nobody_leaves():
    h, _ = overflowing([100] * 5, capacity=500)
    assert of_type(h.run_to(20.0), Pause, Marked) == []


def test_an_8_token_overflow_marks_one_of_six():
    h, _ = overflowing([100, 101, 102, 103, 104, 105], capacity=607)
    assert [(m.program_id, m.marked) for m in of_type(h.decisions, Marked)] == [("p0", True)]
    assert of_type(h.run_to(20.0), Marked, Pause) == []


def test_an_8_token_overflow_pauses_one_of_six_acting():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    for n in range(6):
        h.turn(f"p{n}", 101 + n)
    h.report("a", 613)
    assert [p.program_id for p in of_type(h.decisions, Pause)] == ["p0"]
    assert of_type(h.run_to(60.0), Pause, Restore) == []


def test_acting_programs_leave_before_shorter_reasoning_ones():
    h = Harness("paper", KEEP)
    h.backend("a", 10_000)
    h.call("short", 10)
    h.turn("long", 900)
    h.turn("longer", 950)
    h.report("a", 1000)
    assert [p.program_id for p in of_type(h.decisions, Pause)] == ["long"]
    assert of_type(h.decisions, Marked) == []


def test_reasoning_ones_are_marked_for_what_the_acting_ones_do_not_free():
    h = Harness("paper", KEEP)
    h.backend("a", 10_000)
    for n, tokens in enumerate([400, 300, 500]):
        h.call(f"running{n}", tokens)
    h.turn("acting", 100)
    h.report("a", 1000)
    assert [p.program_id for p in of_type(h.decisions, Pause)] == ["acting"]
    assert [m.program_id for m in of_type(h.decisions, Marked)] == ["running1"]


def test_lower_priority_leaves_first():
    h = Harness("paper", KEEP)
    h.backend("a", 10_000)
    h.turn("important", 100, priority=1)
    h.turn("ordinary", 500)
    h.report("a", 400)
    assert [p.program_id for p in of_type(h.decisions, Pause)] == ["ordinary"]


def test_what_has_faded_away_is_not_paused_for_show():
    h = Harness("paper", PaperSettings())
    h.backend("a", 10_000)
    h.turn("faded", 100)
    h.after(20.0)
    h.call("one", 300)
    h.call("two", 400)
    h.report("a", 650)
    assert of_type(h.decisions, Pause) == []
    assert [m.program_id for m in of_type(h.decisions, Marked)] == ["one"]


def test_a_marked_program_leaves_when_its_last_running_call_ends():
    h, (one, *_) = overflowing([100, 300], capacity=390)
    second = h.call("p0", 20)
    assert h.running(second) is None, "further calls of a marked program wait"
    assert h.status("p0") == ["active"], "with a running call it is active"
    said = h.finish(one, 100)
    assert [p.backend_id for p in of_type(said, Pause)] == ["a"]
    assert h.status("p0", "p1") == ["paused", "active"]
    assert h.view("p0")["phase"] == "reasoning"
    assert h.view("p0")["tokens"]["context"] == 0
    assert h.scheduler.why("p0", h.now).needed_tokens == 100


def test_two_running_calls_both_end_before_it_leaves():
    h, calls = overflowing([100, 300], capacity=100_000)
    twin = h.call("p0", 100)
    h.report("a", 390)
    assert of_type(h.decisions, Marked)
    assert of_type(h.finish(calls[0], 100), Pause) == []
    assert of_type(h.finish(twin, 100), Pause) != []


def test_a_mark_is_lifted_when_the_room_is_back():
    h, (_, two) = overflowing([100, 300], capacity=390)
    waiting = h.call("p0", 100)
    said = h.finish(two, 50)
    assert [(m.program_id, m.marked) for m in of_type(said, Marked)] == [("p0", False)]
    assert dispatched(said) == [waiting]


def test_a_mark_is_not_kept_for_a_program_whose_own_growth_is_gone():
    h, (one, _) = overflowing([100, 300], capacity=390)
    said = h.finish(one, 80)
    assert [m.marked for m in of_type(said, Marked)] == [False]
    assert of_type(said, Pause) == []
    assert h.status("p0") == ["active"]


def test_a_smaller_overflow_needs_fewer_marks():
    h, calls = overflowing([100, 150, 700], capacity=750)
    assert [m.program_id for m in of_type(h.decisions, Marked)] == ["p0", "p1"]
    h.report("a", 860)
    assert [(m.program_id, m.marked) for m in of_type(h.decisions, Marked)][2:] == [("p1", False)]
    assert h.running(calls[1]) == "a"


def test_growth_while_decoding_is_seen_at_the_next_tick():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    h.call("p0", 400)
    growing = h.call("p1", 500)
    h.handle(CallProgressed(at=1.0, call_id=growing, completion_tokens=200))
    assert h.used("a") == 1100
    assert h.view("p1")["tokens"]["context"] == 700
    assert [m.program_id for m in of_type(h.run_to(5.0), Marked)] == ["p0"]


def test_no_ping_pong_on_an_idle_fleet():
    """Decay on one side only made 10 pauses and 9 resumes in 10 ticks of this."""
    h = Harness("paper", PaperSettings())
    h.backend("a", 1000)
    for n in range(10):
        h.turn(f"p{n}", 150)
    before = len(h.decisions)
    h.run_to(50.0)
    assert len(of_type(h.decisions[before:], Pause)) <= 4, "500 tokens too many at first"
    assert len(of_type(h.decisions[before:], Restore)) <= 4
    before = len(h.decisions)
    h.run_to(100.0)
    assert of_type(h.decisions[before:], Pause, Restore, Marked) == []


# --- restoring


def full(capacity: int = 1000, settings=KEEP, **backends: int) -> tuple[Harness, dict[str, str]]:
    """Backends each filled by one running program of its own: ``{backend: call}``."""
    h = Harness("paper", settings)
    fillers = {}
    for backend, size in (backends or {"a": capacity}).items():
        h.backend(backend, size)
        fillers[backend] = h.call(f"filler-{backend}", size)
        assert h.running(fillers[backend]) == backend
    return h, fillers


def test_a_newcomer_that_fits_is_placed_at_once_and_another_is_queued():
    h, _ = full(settings=KEEP)
    h.report("a", 1500)
    fits, waits = h.call("fits", 500), h.call("waits", 1)
    assert h.running(fits) == "a"
    assert h.running(waits) is None
    assert h.status("fits", "waits") == ["active", "paused"]


def test_newcomers_spread_over_the_replicas():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    h.backend("b", 1000)
    for n in range(6):
        h.call(f"p{n}", 10)
    assert [h.on(f"p{n}") for n in range(6)] == ["a", "b"] * 3


def test_reasoning_ones_are_restored_before_shorter_acting_ones_and_short_before_long():
    h, fillers = full()
    for name, tokens in (("acting", 50), ("long", 400), ("short", 200)):
        h.report("a", 3000)
        h.turn(name, tokens)
        h.report("a", 1000)
        assert h.status(name) == ["paused"]
    calls = {name: h.call(name, tokens) for name, tokens in (("long", 400), ("short", 200))}
    said = h.finish(fillers["a"], 400)
    assert {r.program_id for r in of_type(said, Restore)} == {"short", "long"}
    assert sorted(dispatched(said)) == sorted(calls.values())
    assert h.status("acting") == ["paused"], "400 + 200 + 400 leave no room for it"
    said = h.close("filler-a", Outcome.SUCCESS)
    assert [r.program_id for r in of_type(said, Restore)] == ["acting"]


def test_best_fit_decreasing_over_all_replicas():
    """The larger first, each where least is left over: 500 goes into 581 rather than 969, then 300."""
    h = Harness("paper", PaperSettings())
    h.backend("x", 10_000)
    for name, tokens in (("smaller", 300), ("larger", 500)):
        h.turn(name, tokens)
    h.report("x", healthy=False)
    for backend, size in (("a", 1000), ("b", 600)):
        h.backend(backend, size)
        h.turn(f"fading-{backend}", size)
        assert h.on(f"fading-{backend}") == backend
    h.call("smaller", 300)
    h.call("larger", 500)
    assert h.status("smaller", "larger") == ["paused", "paused"]
    said = h.run_to(5.0)
    places = [(restore.program_id, restore.backend_id) for restore in of_type(said, Restore)]
    assert places == [("larger", "b"), ("smaller", "a")]


def test_a_program_that_no_replica_has_room_for_does_not_hold_up_smaller_ones():
    h, fillers = full(a=500, b=500)
    for name, tokens in (("big", 450), ("small", 40)):
        h.call(name, tokens)
    h.finish(fillers["a"], 300)
    assert h.status("big", "small") == ["paused", "active"]


def test_priority_goes_before_length():
    h, fillers = full()
    h.call("short", 100)
    h.call("urgent", 700, priority=1)
    h.finish(fillers["a"], 300)
    assert h.status("urgent", "short") == ["active", "paused"]


def test_a_raised_priority_counts_for_those_already_queued():
    h, fillers = full()
    h.call("short", 100)
    h.call("late", 700)
    h.put("late", priority=9)
    h.finish(fillers["a"], 300)
    assert h.status("late", "short") == ["active", "paused"]


def test_restore_says_how_long_and_where_and_whether_it_moved():
    h = Harness("paper", KEEP)
    h.backend("a", 2000)
    h.turn("p", 600)
    h.turn("stays", 700)
    h.report("a", 1000)
    h.after(3.0)
    said = h.backend("b", 1000)
    (restore,) = of_type(said, Restore)
    assert (restore.program_id, restore.backend_id, restore.moved) == ("p", "b", True)
    assert (restore.context_tokens, restore.paused_s) == (600, 3.0)
    counters = h.scheduler.counters
    assert (counters.pauses, counters.restores, counters.moves, counters.queued) == (1, 1, 1, 0)


def test_room_that_fades_in_is_found_by_the_tick():
    h = Harness("paper", PaperSettings())
    h.backend("a", 1000)
    h.turn("acting", 900)
    waiting = h.call("p", 500)
    assert h.running(waiting) is None
    said = h.run_to(5.0)
    assert dispatched(said) == [waiting]
    assert h.status("acting") == ["active"], "900 have faded to 28, so both have room"


def test_the_window_keeps_a_backend_closed_until_it_is_below_lambda_min():
    h = paper(decay=1.0, lambda_max=0.9, lambda_min=0.5)
    h.backend("a", 1000)
    first = h.call("first", 450)
    second = h.call("second", 350)
    waiting = h.call("waiting", 50)
    assert h.running(waiting) is None, "800 of 1000 is above λmin, although below λmax"
    h.finish(second, 100)
    assert h.running(waiting) is None, "550 still is"
    h.finish(first, 380)
    assert h.running(waiting) == "a"
    assert of_type(h.run_to(50.0), Pause) == []


def test_filling_stops_at_lambda_max():
    h = paper(decay=1.0, lambda_max=0.9, lambda_min=0.5)
    h.backend("a", 1000)
    assert h.running(h.call("most", 500)) == "a"
    h2 = paper(decay=1.0, lambda_max=0.9, lambda_min=0.5)
    h2.backend("a", 1000)
    h2.call("some", 400)
    assert h2.running(h2.call("rest", 501)) is None
    assert h2.running(h2.call("fits", 500)) == "a"


def test_a_backend_of_unknown_capacity_takes_everybody():
    h = Harness("paper", KEEP)
    h.backend("a", None)
    assert all(h.running(h.call(f"p{n}", 10**6)) == "a" for n in range(5))
    assert h.scheduler.why("p0", h.now).free_tokens is None


# --- programs larger than capacity


def test_an_oversize_call_goes_at_once_where_most_room_is_and_fills_it():
    h = Harness("paper", KEEP)
    h.backend("a", 1000)
    h.backend("b", 1200)
    giant = h.call("giant", 5000, max_wait_s=0.0)
    assert h.running(giant) == "b"
    assert h.used("b") == 1200
    assert h.running(h.call("small", 1)) == "a"
    filler = h.call("filler", 999)
    waits = h.call("waits", 100)
    assert (h.running(filler), h.running(waits)) == ("a", None)
    said = h.fail(giant, CallEnd.ENGINE_REFUSED)
    assert dispatched(said) == [waits]
    assert h.running(waits) == "b"


def test_a_queued_program_that_outgrows_everything_goes_at_once():
    h, _ = full(1000)
    first = h.call("p", 600)
    assert h.running(first) is None
    giant = h.call("p", 5000)
    assert (h.running(first), h.running(giant)) == ("a", "a")


def test_a_marked_program_with_an_oversize_call_stays():
    h, _ = overflowing([100, 300], capacity=390)
    assert h.running(h.call("p0", 5000)) == "a"
    assert [m.marked for m in of_type(h.decisions, Marked)] == [True, False]


def test_a_capacity_that_falls_below_what_waits_lets_it_go():
    h, _ = full(1000)
    waits = h.call("p", 900)
    said = h.report("a", 800)
    assert [d.call_id for d in of_type(said, Dispatch)] == [waits]


def test_a_call_moves_to_the_one_backend_that_is_large_enough():
    h = Harness("paper", KEEP)
    h.backend("small", 100)
    h.turn("p", 50)
    h.backend("large", 1000)
    assert h.on("p") == "small"
    assert h.running(h.call("p", 500)) == "large"


def test_a_context_too_large_for_all_goes_where_its_call_fits():
    h = Harness("paper", KEEP)
    h.backend("small", 100)
    h.backend("large", 1000)
    h.put("p")
    first = h.call("p", 900)
    assert h.running(first) == "large"
    h.finish(first, 5000)
    h.report("large", healthy=False)
    h.report("large", 1000)
    second = h.call("p", 500)
    assert h.running(second) == "large"


# --- size of the work


def calls_made(work) -> int:
    """How many functions the work has called: a measure of it that no clock disturbs."""
    count = 0

    def on_event(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def crowd(programs: int) -> Harness:
    """Half of the programs on a backend that is over its limit, half queued."""
    h = Harness("paper", KEEP)
    h.handle = h.scheduler.handle
    h.backend("a", 10**9)
    for n in range(programs // 2):
        h.turn(f"placed{n}", 100 + n % 50)
    h.report("a", 100 * programs // 2)
    for n in range(programs // 2):
        h.call(f"queued{n}", 100 + n % 50)
    return h


def test_a_tick_over_ten_times_the_programs_is_about_ten_times_the_work():
    def work(programs):
        h = crowd(programs)
        h.report("a", 80 * programs // 2)
        h.now = 10.0
        return calls_made(lambda: h.run_to(10.0)) + calls_made(lambda: h.report("a", 60 * programs // 2))

    assert work(5000) < 20 * work(500)


def test_a_call_costs_the_same_however_many_programs_there_are():
    def work(programs):
        h = crowd(programs)
        call = h.call("placed0", 200)
        return calls_made(lambda: (h.finish(call, 300), h.call("placed0", 400), h.call("new", 100)))

    assert work(5000) < 2 * work(500)
