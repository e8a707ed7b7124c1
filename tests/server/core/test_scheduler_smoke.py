"""The shortest story through every policy."""

import pytest

from thunder_server.core import POLICIES, Scheduler, make_policy
from thunder_server.core.events import BackendAdded, BackendReported, CallArrived, CallEnd, CallFinished, Tick


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_is_dispatched_and_its_program_ends_by_its_lease(policy):
    scheduler = Scheduler(policy=make_policy(policy))

    def handle(event):
        decisions = [type(decision).__name__ for decision in scheduler.handle(event)]
        scheduler.check_invariants()
        return decisions

    handle(BackendAdded(at=0.0, backend_id="a"))
    handle(BackendReported(at=0.0, backend_id="a", healthy=True, capacity_tokens=1000))
    assert handle(CallArrived(at=1.0, call_id="c1", program_id="p1")) == [
        "Opened",
        "PhaseChanged",
        "Dispatch",
    ]
    assert handle(CallFinished(at=2.0, call_id="c1", end=CallEnd.COMPLETED)) == ["PhaseChanged"]
    assert handle(Tick(at=602.0)) == ["Terminate"]
    assert handle(Tick(at=1202.0)) == ["Forget"]
    assert not scheduler.programs
