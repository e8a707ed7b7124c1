"""What holds after every event, recomputed from scratch. For tests: it reads everything."""

from __future__ import annotations

from collections import Counter
from math import isclose, isinf

from thunder_server.core.backend import Backend
from thunder_server.core.program import Phase, Program, State
from thunder_server.core.world import Due, World

ON_A_BACKEND = frozenset({State.PLACED, State.MARKED})


def check_invariants(w: World) -> None:
    """Raises ``AssertionError`` naming what does not hold."""
    assert not w.unsettled, "an event was not worked off"
    for program in w.live:
        _check_program(w, program)
    for program in w.programs.values():
        ended = program.state is State.ENDED
        assert ended != (program in w.live), f"{program.id} is lost"
        forget = w.deadlines.get((Due.FORGET, program.id))
        assert ended == (forget is not None), f"{program.id}: to be forgotten at {forget}"
    for backend in w.fleet.values():
        _check_backend(w, backend)
    _check_calls(w)
    for program in w.queue:
        assert program in w.live, f"{program.id} has ended and is in the queue"


def _check_program(w: World, p: Program) -> None:
    who = f"{p.id} (generation {p.generation})"
    assert (p.phase is Phase.REASONING) == bool(p.calls), (
        f"{who} is {p.phase.value} with {len(p.calls)} calls"
    )
    assert p.running == sum(c.backend_id is not None for c in p.calls.values()), f"{who}: {p.running} running"
    assert (p.backend_id is not None) == (p.state in ON_A_BACKEND), (
        f"{who}: {p.state.value} on {p.backend_id}"
    )
    assert p.backend_id is None or p in w.fleet[p.backend_id].programs, f"{who} is not on its backend"
    assert p.ending is None or p.calls, f"{who} should have ended"
    assert p.resident in ({0, p.context} if p.backend_id else {0}), f"{who}: {p.resident} resident"
    lease = w.deadlines.get((Due.LEASE, p))
    assert (lease is None) == bool(p.calls), f"{who}: the lease ends at {lease} with {len(p.calls)} calls"
    if p.state is State.PLACED:
        assert not p.waiting, f"{who} is on {p.backend_id}, and {p.waiting} calls wait"
    if p.state is State.MARKED:
        assert p.running, f"{who} is marked and has nothing running"
    if p.state is State.QUEUED:
        assert not p.running, f"{who} is paused and has calls running"
    if p.held:
        assert p.state is State.QUEUED, f"{who} is {p.state.value} and held up by its environment"
    if p.state is State.UNPLACED:
        assert p.running or not p.waiting, f"{who} waits outside the queue"
    homeless = p.state is State.QUEUED or (p.state is State.UNPLACED and p.waiting > 0)
    seat = w.policy.seat(p) if homeless and not p.held else None
    assert w.queue.seat(p) == seat, f"{who}: {p.state.value}, sits at {w.queue.seat(p)}, not at {seat}"


def _check_backend(w: World, b: Backend) -> None:
    for program in b.programs:
        assert program.backend_id == b.id, f"{program.id} is not on {b.id}"
        assert program in w.live, f"{program.id} has ended and is on {b.id}"
    assert all(p.state is State.MARKED for p in b.marked), f"{b.id}: marks"
    assert set(b.marked) == {p for p in b.programs if p.state is State.MARKED}, f"{b.id}: marks are missing"
    used = 0.0
    for program, charge in b.charges.items():
        assert charge.tokens == program.claim(b.id), f"{program.id} is charged {charge.tokens} on {b.id}"
        assert charge.since == program.idle_since, f"{program.id} is charged as idle since {charge.since}"
        used += b.weight_of(program, w.now)
    assert set(b.programs) <= set(b.charges), f"{b.id}: programs without an account"
    _check_sharing(b)
    used -= b.sharing.credit if b.shares else 0
    assert isclose(b.used(w.now), max(0.0, used), rel_tol=1e-6, abs_tol=1e-3), (
        f"{b.id}: {b.used(w.now)}, not {used}"
    )
    for call in b.calls:
        assert call.id in w.calls, f"{call.id} is over and runs on {b.id}"
        assert call.backend_id == b.id, f"{call.id} does not run on {b.id}"


def _check_sharing(b: Backend) -> None:
    holders: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    for program, chain in b.sharing.chains.items():
        assert program in b.programs, f"{program.id} shares memory of {b.id} and is not there"
        holders.update(chain.keys)
    for key, (count, tokens) in b.sharing.holders.items():
        assert holders[key] == count, f"{b.id}: a piece is held {holders[key]} times, not {count}"
        sizes[key] = tokens
    assert sizes.keys() == holders.keys(), f"{b.id}: pieces that nobody holds"
    credit = sum((count - 1) * sizes[key] for key, count in holders.items())
    assert credit == b.sharing.credit, f"{b.id}: {b.sharing.credit} tokens are shared, not {credit}"


def _check_calls(w: World) -> None:
    waiting = {call for calls in w.waiting.values() for call in calls}
    for program, call in w.calls.values():
        assert program in w.live, f"{call.id} belongs to no live program"
        assert program.calls.get(call.id) is call, f"{call.id} is not with its program"
        assert (call.backend_id is None) == (call in waiting), f"{call.id}: waiting is not noted"
        deadline = w.deadlines.get((Due.WAIT, call))
        assert (call in waiting) == (deadline is not None), f"{call.id}: waits until {deadline}"
    assert len(w.calls) == sum(len(p.calls) for p in w.live), "calls of no program"
    for model in w.waiting:
        unserved = w.deadlines.get((Due.UNSERVED, model)) is not None
        assert unserved != bool(w.fleet.serving(model)), f"model {model!r}: unserved is {unserved}"
    assert not isinf(w.deadlines.next() or 0.0), "a deadline that never comes"
