"""What programs leave behind in a cache."""

from __future__ import annotations

from tests.server.core.harness import Harness
from thunder_server.core.events import Outcome
from thunder_server.core.program import Program
from thunder_server.core.residue import Residue


def program(name: str) -> Program:
    return Program(id=name, generation=1, opened_at=0.0, lease_s=60.0)


P, Q, R = program("p"), program("q"), program("r")


def test_what_was_used_later_is_in_the_way():
    residue = Residue()
    residue.leave(P, 100, 1.0, limit=1000)
    residue.leave(Q, 200, 3.0, limit=1000)
    residue.leave(R, 400, 2.0, limit=1000)
    assert [residue.since(when) for when in (0.0, 1.5, 2.0, 2.5, 3.5)] == [700, 600, 600, 200, 0]
    residue.pass_by(2.0)
    assert (residue.tokens, residue.of(P), residue.of(Q)) == (600, 0, 200)


def test_who_comes_back_takes_it_up_again():
    residue = Residue()
    residue.leave(P, 100, 1.0, limit=1000)
    residue.take(P)
    residue.take(P)
    assert residue.tokens == 0


def test_it_is_no_more_than_the_cache_holds():
    residue = Residue()
    for number, one in enumerate((P, Q, R)):
        residue.leave(one, 400, float(number), limit=1000)
    assert (residue.of(P), residue.of(Q), residue.tokens) == (0, 400, 800)
    residue.leave(R, 500, 9.0, limit=1000)
    assert residue.tokens == 900


def test_a_backend_keeps_it_and_loses_it_with_its_cache():
    h = Harness("phase")
    h.backend("a", 1000)
    h.turn("p", 300)
    h.close("p", Outcome.SUCCESS)
    backend = h.scheduler.backends["a"]
    assert backend.residue.tokens == 300
    h.report("a", healthy=False)
    assert backend.residue.tokens == 0


def test_waiting_adds_up_until_the_program_has_found_a_place():
    residue = Residue()
    waits = program("waits")
    assert [residue.waited_s(waits, at) for at in (1.0, 3.0, 6.0)] == [0.0, 2.0, 5.0]
    waits.placed_at = 7.0  # somewhere else
    assert [residue.waited_s(waits, at) for at in (9.0, 10.0)] == [0.0, 1.0]
    residue.take(waits)  # it has found its place here
    assert residue.waited_s(waits, 20.0) == 0.0
