"""Deadlines, the global queue and the sizing of prompts, each by itself."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.core.harness import Harness
from thunder_server.core.deadlines import SLACK, Deadlines
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.program import Program
from thunder_server.core.sizing import START_RATIO

KEYS = st.sampled_from("abcd")


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 20))), max_size=400))
def test_deadlines_are_as_a_plain_table_would_have_them(moves):
    deadlines, table = Deadlines[str](), {}
    for key, at in moves:
        if at is None:
            deadlines.clear(key)
            table.pop(key, None)
        else:
            deadlines.set(key, float(at))
            table[key] = float(at)
        assert deadlines.next() == min(table.values(), default=None)
        assert deadlines.get(key) == table.get(key)
    popped = []
    while (key := deadlines.pop(10.0)) is not None:
        popped.append((table.pop(key), key))
    assert [at for at, _ in popped] == sorted(at for at, _ in popped)
    assert all(at <= 10.0 for at, _ in popped)
    assert all(at > 10.0 for at in table.values())
    assert deadlines.next() == min(table.values(), default=None)


def test_deadlines_that_only_ever_move_take_no_room():
    deadlines = Deadlines[int]()
    deadlines.set(-1, 1e9)
    for n in range(10_000):
        deadlines.set(0, float(n))
        deadlines.set(n + 1, 5.0 + n)
        deadlines.clear(n + 1)
    assert len(deadlines._heap) <= SLACK + 5
    assert deadlines.next() == 9999.0


def seats(*numbers) -> Seat:
    priority, kind, rank = numbers
    return Seat((-priority, kind, ""), float(rank))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.one_of(st.none(), st.tuples(*[st.integers(0, 2)] * 3))), max_size=300
    )
)
def test_the_queue_is_as_a_sorted_list_would_have_it(moves):
    queue, table = GlobalQueue(), {}
    programs = [Program(id=str(n), generation=1, opened_at=0.0, lease_s=1.0) for n in range(6)]
    arrivals = 0
    for number, seat in moves:
        program = programs[number]
        if seat is None:
            queue.discard(program)
            table.pop(program, None)
        else:
            arrivals += 1
            order = table[program][1] if program in table else arrivals
            table[program] = (seats(*seat), order)
            queue.put(program, seats(*seat))
        expected = sorted(table, key=lambda p: (table[p][0].group, table[p][0].rank, table[p][1]))
        assert [p for group in queue.groups() for p in queue.walk(group)] == expected
        assert queue.lowest_rank() == min((seat.rank for seat, _ in table.values()), default=inf)
        assert [queue.position(p) for p in expected] == list(range(1, len(expected) + 1))
        assert len(queue) == len(expected)
        assert set(queue) == set(expected)


def test_a_walk_that_takes_some_and_stops_keeps_the_rest():
    queue = GlobalQueue()
    programs = [Program(id=str(n), generation=1, opened_at=0.0, lease_s=1.0) for n in range(5)]
    for program in programs:
        queue.put(program, seats(0, 0, 0))
    (group,) = queue.groups()
    for program in queue.walk(group):
        if program is programs[1]:
            queue.discard(program)
        if program is programs[3]:
            break
    assert list(queue.walk(group)) == [programs[0], *programs[2:]]


def test_programs_that_come_and_go_leave_no_trace_in_the_queue():
    queue = GlobalQueue()
    first = Program(id="first", generation=1, opened_at=0.0, lease_s=1.0)
    queue.put(first, seats(0, 0, 0))
    for n in range(1000):
        program = Program(id=str(n), generation=1, opened_at=0.0, lease_s=1.0)
        queue.put(program, seats(0, n % 2, 1 + n))
        queue.discard(program)
        list(queue.groups())
        queue.tidy()
    assert sum(map(len, queue._heaps.values())) <= SLACK + 3
    assert len(queue._lowest) <= SLACK + 3
    assert list(queue.groups()) == [(0, 0, "")]


# --- sizing: estimates are seen as the tokens of a call that waits or runs


def estimate(h: Harness, program_id: str, chars: int) -> int:
    call_id = h.call(program_id, prompt_chars=chars)
    call = h.scheduler.call(call_id)
    h.fail(call_id, "client_gone")
    return call.tokens


@pytest.fixture
def h() -> Harness:
    h = Harness("passthrough")
    h.backend("a")
    return h


def test_without_history_four_characters_are_a_token(h):
    assert estimate(h, "p", 4000) == 1000
    assert estimate(h, "p", 1) == 1


def test_with_history_only_what_is_new_is_guessed(h):
    h.finish(h.call("p", prompt_chars=4000), 1300, 200)
    assert estimate(h, "p", 4000) == 1500, "at least the context"
    assert estimate(h, "p", 8000) == pytest.approx(1300 + 1300, rel=0.05)


def test_a_prompt_that_shrank_is_guessed_as_a_whole(h):
    h.finish(h.call("p", prompt_chars=4000), 1000, 200)
    assert estimate(h, "p", 400) == pytest.approx(100, rel=0.1)


def test_a_prompt_of_unknown_length_is_as_large_as_the_context_or_as_expected(h):
    assert estimate(h, "p", 0) == 0
    h.put("q", expected_context_tokens=7000)
    assert estimate(h, "q", 0) == 7000
    h.finish(h.call("p", prompt_chars=0), 1000, 20)
    assert estimate(h, "p", 0) == 1020


def test_one_strange_request_does_not_poison_the_others(h):
    h.finish(h.call("strange", prompt_chars=100), 100_000, 0)
    assert estimate(h, "p", 4000) <= 1100
    h.finish(h.call("strange2", prompt_chars=10_000_000), 1, 0)
    assert estimate(h, "p", 4000) == pytest.approx(1000, rel=0.01)


def test_but_all_of_them_together_do_move_the_ratio(h):
    for n in range(20):
        h.finish(h.call(f"p{n}", prompt_chars=1000), 500, 0)
    assert estimate(h, "new", 1000) == 500


def test_a_program_learns_its_own_ratio_from_its_growth(h):
    chars, tokens = 1000, 5000  # an image at the beginning
    for _ in range(8):
        h.finish(h.call("p", prompt_chars=chars), tokens, 0)
        chars, tokens = chars + 1000, tokens + 500
    grown = estimate(h, "p", chars) - (tokens - 500)
    assert 250 <= grown <= 600
    assert pytest.approx(0.25) == START_RATIO
