"""The simulator's reference line: it is told the future, and nothing else differs."""

from __future__ import annotations

from tests.simulation.sessions import growing, machines, session, starts, turn
from thunder_server.core import make_policy
from thunder_server.simulation.oracle import Oracle
from thunder_server.simulation.simulator import Simulator


def test_it_serves_the_same_work():
    crowd = [growing(f"s{n}", 3 + n % 4, gap=3.0 + n % 3) for n in range(12)]
    outcomes = [
        Simulator(starts(crowd), machines(1600, 2), policy=policy, check=True).run()
        for policy in (Oracle(), make_policy("phase"))
    ]
    assert [len(outcome.served) for outcome in outcomes] == [sum(len(s.turns) for s in crowd)] * 2


def test_it_waits_for_children_as_everybody_does():
    child = session("s/child", turn(50, 1))
    parent = session("s", turn(100, 1), turn(200, 1, shared=100, gap=5.0, children=(child,)))
    outcome = Simulator(starts([parent]), machines(1600), policy=Oracle(), check=True).run()
    assert len(outcome.served) == 3
