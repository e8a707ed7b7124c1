"""What durations are learned, and what they say of one that is still going on."""

from __future__ import annotations

from math import inf

from thunder_server.core.durations import ENOUGH, KINDS, SAMPLES, Durations, Kinds


def learned(*seconds: float) -> Durations:
    durations = Durations()
    for one in seconds:
        durations.learn(one)
    return durations


def test_too_few_say_nothing_and_it_is_taken_to_take_as_long_again():
    assert learned().left_s(7.0) == 7.0
    assert learned(*[100.0] * (ENOUGH - 1)).left_s(7.0) == 7.0
    assert learned(*[100.0] * ENOUGH).left_s(7.0) == 93.0


def test_one_that_hung_moves_nothing():
    assert learned(1, 2, 3, 4, 5, 3600).left_s(0.0) == 3


def test_what_outlasts_nearly_all_of_many_is_not_one_of_them():
    assert learned(*[2.0] * 100).left_s(3.0) == inf
    assert learned(*[2.0] * 10).left_s(3.0) == 3.0
    assert learned(*[2.0] * 95, *[50.0] * 5).left_s(3.0) == 47.0


def test_only_the_latest_count():
    durations = learned(*[5.0] * SAMPLES, *[9.0] * SAMPLES)
    assert durations.left_s(0.0) == 9.0
    assert durations.longer(8.0) == SAMPLES


def test_names_are_bounded_and_the_latest_used_stay():
    kinds = Kinds()
    first, second = kinds.of("first"), kinds.of("second")
    for number in range(KINDS - 2):
        kinds.of(str(number))
    assert kinds.of("first") is first
    kinds.of("one more")
    assert kinds.of("first") is first
    assert kinds.of("second") is not second
