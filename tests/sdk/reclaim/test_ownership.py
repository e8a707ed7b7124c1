"""Whose an object is."""

import math

import pytest

from thunder_sdk.reclaim.endings import Spared
from thunder_sdk.reclaim.ownership import Clock, Made, Owner, owners, require_owned, unix

LIVED = Owner("p1", 100.0, 200.0)
SAME = Clock(0.0)


def owned(made=None, labels=None, *, claims=(LIVED,), clock=SAME, brought=False):
    try:
        require_owned("thing", labels or {}, made, claims, lambda: clock, brought=brought)
    except Spared as spared:
        return str(spared)
    return True


def at(when):
    return Made(when, when)


def test_a_label_decides():
    assert owned(at(1.0), {"thunder.program": "p1"}) is True
    assert "label thunder.program=p2" in owned(at(150.0), {"thunder.program": "p2"})
    assert owned(at(150.0), {"other": "p2"}) is True


def test_without_a_label_it_was_made_while_the_program_lived():
    assert owned(at(100.0)) is True
    assert owned(at(200.0)) is True
    assert "was there before its program" in owned(at(99.999))
    assert "made after its program had ended" in owned(at(200.001))
    assert "cannot be told" in owned(None)
    assert owned(Made(100.0, 101.0)) is True
    assert "before" in owned(Made(99.5, 100.5))


def test_what_was_seen_not_to_be_there_was_brought():
    assert owned(at(1.0), brought=True) is True
    assert "another program" in owned(at(150.0), {"thunder.program": "p2"}, brought=True)


def test_one_of_several_programs_that_shared_it_is_enough():
    later = Owner("p2", 150.0, 300.0)
    assert owned(at(250.0), claims=(LIVED, later)) is True
    assert "before" in owned(at(50.0), claims=(LIVED, later))
    assert owned(at(1.0), {"thunder.program": "p2"}, claims=(LIVED, later)) is True


def test_what_the_next_generation_made_is_its_own():
    reopened = Owner("p1", 100.0, 200.0, next_opened_at=300.0)
    label = {"thunder.program": "p1"}
    assert owned(at(250.0), label, claims=(reopened,)) is True
    assert "next generation" in owned(at(300.0), label, claims=(reopened,))
    assert "next generation" in owned(None, label, claims=(reopened,))
    assert "next generation" in owned(at(350.0), label, claims=(reopened,), clock=Clock(10.0))


def test_an_engine_with_another_clock_is_believed_in_its_own_terms():
    assert owned(at(650.0), clock=Clock(500.0)) is True
    assert "before" in owned(at(150.0), clock=Clock(500.0))


@pytest.mark.parametrize(
    ("asked", "said", "answered", "ahead"),
    [(10.0, 10.0, 10.1, 0.0), (10.0, 10.05, 10.1, 0.0), (10.0, 9.0, 10.1, -1.0), (10.0, 12.0, 10.1, 2.0)],
)
def test_the_clock_of_an_engine(asked, said, answered, ahead):
    clock = Clock.of_engine(asked, said, answered)
    assert clock.ahead == pytest.approx(ahead)
    assert clock.here(clock.there(5.0)) == 5.0


def test_claims_come_on_the_servers_clock():
    claims = [
        {"program_id": "p1", "opened_at": 1_000.0, "ended_at": 1_010.0},
        {"program_id": "p2", "opened_at": 1_001.0, "ended_at": 1_011.0, "next_opened_at": 1_012.0},
    ]
    there = Clock.of_sender(1_020.0, 20.0)
    assert owners(claims, there) == (Owner("p1", 0.0, 10.0, math.inf), Owner("p2", 1.0, 11.0, 12.0))
    assert Clock.of_sender(20.5, 20.0) == SAME


def test_times_as_docker_writes_them():
    assert unix("2026-11-29T17:28:33.931241131Z") == pytest.approx(1795973313.931241, abs=1e-5)
    assert unix("2026-11-29T17:28:33Z") == 1795973313.0
    assert unix("2026-11-29T19:28:33.5+02:00") == 1795973313.5
    assert unix("2026-11-29T17:28:33.Z") == 1795973313.0
