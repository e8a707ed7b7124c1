"""What exchanging contexts costs, as learned from calls."""

from __future__ import annotations

import random

import pytest

from tests.server.core.harness import Harness
from thunder_server.core.events import CallEnd
from thunder_server.core.turnover import MOST_CROWDED, UNMEASURED_S, Turnover

PREFILL, DECODE = 1e-4, 0.02


def test_prefilling_is_found_among_decoding_batches_and_queues():
    rng = random.Random(0)
    turnover = Turnover()
    for _ in range(300):
        computed, completion = rng.choice([50, 200, 40_000]), rng.randint(1, 400)
        crowd = rng.uniform(1.0, 3.0)  # others in the batch, and before us in the queue
        seconds = computed * PREFILL * crowd + completion * DECODE * crowd + rng.expovariate(1.0)
        turnover.learn(seconds=seconds, computed=computed, completion=completion)
    assert turnover.decode_s == pytest.approx(DECODE, rel=0.2)
    assert turnover.prefill_s == pytest.approx(PREFILL, rel=0.6)


def test_a_slower_engine_is_noticed():
    turnover = Turnover()
    for seconds in [1.0] + [4.0] * 3000:
        turnover.learn(seconds=seconds, computed=10_000, completion=0)
    assert turnover.break_even_s(10_000) == pytest.approx(4.0)


def test_until_something_was_measured_a_usual_engine_is_assumed():
    turnover = Turnover()
    assert turnover.break_even_s(1e6) == UNMEASURED_S
    turnover.learn(seconds=5.0, computed=0, completion=100)
    turnover.learn(seconds=5.0, computed=1, completion=100)
    assert turnover.break_even_s(1e6) == UNMEASURED_S
    turnover.learn(seconds=1.0, computed=1000, completion=1)
    assert turnover.break_even_s(float("inf")) == UNMEASURED_S


def test_prefilling_takes_no_longer_than_any_whole_call():
    turnover = Turnover()
    turnover.learn(seconds=0.0, computed=5, completion=5)
    turnover.learn(seconds=2.0, computed=10_000, completion=100)  # mostly decoding, it seems
    assert turnover.break_even_s(1000) == pytest.approx(0.2)
    turnover.learn(seconds=4.0, computed=10, completion=100)  # in a crowd: 0.2 s a token, as it were
    assert turnover.break_even_s(1000) == pytest.approx(0.2, rel=0.01)


def test_growth_is_that_of_the_last_break_even_time():
    turnover = Turnover()
    turnover.learn(seconds=1.0, computed=1000, completion=0)
    for second in range(200):
        turnover.grew(7, capacity=10_000, at=float(second))
    assert turnover.break_even_s(10_000) == 10.0
    assert turnover.growth(10_000, 199.0) == pytest.approx(70, rel=0.06)
    assert turnover.growth(10_000, 299.0) < 0.01


def test_answers_teach_the_backend_they_came_from():
    h = Harness("phase")
    h.backend("a", 1000)
    learned = h.scheduler.backends["a"].turnover
    first = h.call("p", 100)
    h.after(10.0).finish(first, 100, 0, cached=0)
    assert learned.prefill_s == 0.1
    assert learned.growth(1000, h.now) == 0  # the first prompt is no growth
    second = h.call("p", 150)
    h.after(1.0).finish(second, 150, 10, cached=100)
    assert learned.growth(1000, h.now) == 60


@pytest.mark.parametrize(
    "what", [{"cached": None}, {"prompt": None}, {"completion": None}, {"end": CallEnd.BACKEND_FAILED}]
)
def test_answers_that_say_less_teach_less(what):
    h = Harness("phase")
    h.backend("a", 1000)
    call = h.call("p", 100)
    h.after(10.0).finish(call, **{"prompt": 100, "completion": 0, "cached": 0} | what)
    assert h.scheduler.backends["a"].turnover.prefill_s == float("inf")


def test_it_pays_to_hold_for_longer_where_more_reason_and_they_slow_each_other_down():
    """Recomputing holds up those who reason; and room is worth less the less of a step they share."""
    turnover = Turnover()
    turnover.learn(seconds=10.0, computed=1000, completion=0)
    turnover.learn(seconds=1.0, computed=0, completion=100)
    assert turnover.break_even_s(1000) == pytest.approx(10.0, rel=0.01)
    for _ in range(400):
        turnover.learn(seconds=4.0, computed=0, completion=100, reasoning=0.25)
    assert turnover.break_even_s(1000) == pytest.approx(10.0 * 0.25 * 4.0, rel=0.1)
    for _ in range(400):
        turnover.learn(seconds=100.0, computed=0, completion=100, reasoning=0.5)  # in the engine's queue
    prefill_s = 1000 * turnover.prefill_s  # which has risen slowly, as nothing was prefilled
    assert turnover.break_even_s(1000) == pytest.approx(prefill_s * 0.5 * MOST_CROWDED, rel=0.1)
