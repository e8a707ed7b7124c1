"""``phase``: driven by what clients tell of their programs; from those that tell nothing it infers.

One view of memory for pausing and restoring: a placed program counts in full until it ends or is paused, and so
does what others have left in the cache as long as it is in the way of one that is idle (`Residue`).

**Admission.** First come, first served, with a head start for programs in flight; to the replica where the
program was before, else to the one with most room; a program whose tool has finished queues before its call
arrives. Those behind one that does not fit may overtake it, a few at a time and only until its patience is
over; then room is left to gather.

**Reclaim.** An acting program keeps its place unless somebody waits for the room and it will be away for
longer than the break-even time (`Turnover`): by the duration its client expects, else by what that tool has
usually taken. What has been used least recently goes first and nothing before it: that is what an engine drops
first, so pausing another one would free nothing.

**Overflow.** When contexts have outgrown a replica, acting programs leave, the longest idle first; then,
only as far as needed, reasoning ones when their calls end, the lowest priority and the shortest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._memory import MemoryBound
from thunder_server.core.policies._protocol import Evict, Intent, Place, Spare
from thunder_server.core.program import Phase, Program, State

INTERVAL_S = 1.0
PATIENCE_S = 60.0
"""Who has waited this long is not overtaken any more."""
OVERTAKING = 8
"""How many that do not fit are looked at before those behind them, of whatever priority, have to wait."""
HEAD_START_S = 300.0
"""Programs in flight go before newcomers that have waited no longer than this: they hold other things than
memory, and what they have done so far is of no use to anybody before they end."""
SLICE = 5.0
"""Break-even times after which a program's place is up to one that has waited as long."""
LOOKS = 64
"""How many of a replica's longest idle programs are looked at for room."""


class PhasePolicy(MemoryBound):
    """This project's own scheduler."""

    name: ClassVar[str] = "phase"
    decay = 1.0
    watermark = 1.0
    interval_s: float | None = INTERVAL_S

    # --- admission

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is not None:
            model, since = call.request.model, call.queued_at
        elif program.expects_call and program.tool_finished_at is not None:
            model, since = program.model, program.tool_finished_at
        else:
            return None
        return Seat((-program.priority, 0, model or ""), since - self.head_start_s(program))

    def head_start_s(self, program: Program) -> float:
        return 0.0 if program.last_backend_id is None else HEAD_START_S

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place | Evict]:
        stuck: Counter[str] = Counter()  # by model: who found no room, in this priority or a higher one
        for group in queue.groups():
            _, _, model = group
            if stuck[model] >= OVERTAKING:
                continue
            for program in queue.walk(group):
                plan = self._plan(fleet, program, at)
                if plan is not None:
                    backend, victims = plan
                    yield from victims
                    yield Place(program, backend, f"there is room for {program.need} tokens")
                    continue
                stuck[model] += OVERTAKING if self._waited(program, at) > PATIENCE_S else 1
                if stuck[model] >= OVERTAKING:
                    break

    def _waited(self, program: Program, at: float) -> float:
        call = program.first_waiting()
        # One that was refused a connection must not hold up those who may go where it may not.
        return 0.0 if call is None or call.tried else at - call.queued_at

    def _plan(self, fleet: Fleet, program: Program, at: float) -> tuple[Backend, list[Evict]] | None:
        """Where the program is to go and who has to leave for it: as few as possible, then where it was, then
        where there is most room."""
        plans = [
            (sum(backend.weight_of(v.program, at) for v in victims), backend, victims)
            for backend in fleet.open_to(program)
            if (victims := self._victims(backend, program, at)) is not None
        ]
        if not plans:
            return None
        _, backend, victims = min(
            plans,
            key=lambda plan: (
                plan[0],
                plan[1].id != program.last_backend_id,
                plan[1].used(at) - plan[1].limit,
                plan[1].load,
            ),
        )
        return backend, victims

    def _victims(self, backend: Backend, program: Program, at: float) -> list[Evict] | None:
        """Who has to leave the backend to make room for the program; ``None``: there is no room to be made."""
        if not backend.charges:
            return []
        need = max(1, program.need)
        room = self._room(backend, at)
        tokens = 0.0
        victims: list[Evict] = []
        if need > room:
            for idle in islice(longest_idle(backend), LOOKS):
                reason = self.evictable(backend, idle, program, at)
                if reason is not None:
                    tokens += backend.weight_of(idle, at)
                    victims.append(Evict(idle, reason))
                    if tokens >= need - room:
                        break
            if tokens < need - room:
                return None
        return victims if self.worth(backend, program, victims, at) else None

    def worth(self, backend: Backend, program: Program, victims: list[Evict], at: float) -> bool:
        """Whether to go in now although it displaces what idle programs are to find again."""
        need = max(1, program.need)
        gone = {victim.program for victim in victims}
        free = backend.limit - backend.used(at) + backend.residue.of(program)
        # residue and victims older than the first one that stays are free; the others are in the way
        harm = 0.0
        first: float | None = None
        stay: list[Program] = []
        for idle in islice(longest_idle(backend), LOOKS):
            if idle in gone:
                continue
            stay.append(idle)
        if not stay:
            return True
        since = backend.charges[stay[0]].since or 0.0
        backend.residue.pass_by(min(since, *(backend.charges[v].since or 0.0 for v in gone)) if gone else since)
        # those of the residue that are younger than the first that stays
        in_way = sum(r.tokens for r in backend.residue if r.since >= since and r.program is not program)
        free -= in_way
        free += sum(backend.weight_of(v, at) for v in gone if (backend.charges[v].since or 0.0) < since)
        harm = min(need, need - free)
        if harm <= 0:
            return True
        wait = 0.0
        left = harm
        for idle in stay:
            wait = max(wait, away_s(idle, at))
            left -= backend.weight_of(idle, at)
            if left <= 0:
                break
        return wait * need > self.break_even_s(backend) * harm * self.kappa

    kappa = 1.0

    def _room(self, backend: Backend, at: float) -> float:
        if backend.limit == inf:
            return inf
        return backend.limit - self.reserve(backend, at) - backend.used(at)

    def reserve(self, backend: Backend, at: float) -> float:
        return 0.0

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return max((self._room(backend, at) for backend in fleet.open_to(program)), default=0.0)

    # --- reclaim

    def evictable(self, backend: Backend, idle: Program, program: Program, at: float) -> str | None:
        break_even = self.break_even_s(backend)
        away = away_s(idle, at)
        if away > break_even:
            return f"it will be away for {away:.0f} s, and {program.id} waits for the room"
        slice_s = SLICE * break_even
        if self._waited(program, at) > slice_s and at - idle.placed_at > slice_s:
            return f"its time slice of {slice_s:.0f} s is over, and {program.id} has waited for longer"
        return None

    def break_even_s(self, backend: Backend) -> float:
        return backend.turnover.break_even_s(backend.limit)

    # --- overflow

    def tick(self, fleet: Fleet, at: float) -> Iterator[Intent]:
        for backend in fleet.values():
            if self.overfull(backend, at):
                yield from self._relieve(backend, at)

    def _relieve(self, backend: Backend, at: float) -> Iterator[Intent]:
        over = backend.used(at) - backend.limit
        reasoning = [p for p in backend.programs if p.phase is Phase.REASONING]
        reasoning.sort(key=lambda p: (p.state is not State.MARKED, p.priority, backend.charges[p].tokens))
        reason = f"{backend.id} was over its capacity by {over:.0f} tokens"
        for program in [*longest_idle(backend), *reasoning]:
            marked = program.state is State.MARKED
            if over > 0:
                over -= backend.weight_of(program, at)
                if not marked:
                    yield Evict(program, reason)
            elif marked:
                yield Spare(program, f"{backend.id} can do without its leaving")


def longest_idle(backend: Backend) -> Iterator[Program]:
    """Acting programs on a backend, who has been acting longest first: a program is charged anew whenever it
    begins to act, and charges keep their order. To be read before anybody is charged again."""
    return (
        program
        for program, charge in backend.charges.items()
        if charge.since is not None and program in backend.programs
    )


def away_s(program: Program, at: float) -> float:
    """Seconds until an acting program's next call, as far as anyone can tell."""
    if not program.acting:
        finished_at = program.tool_finished_at
        if finished_at is not None:
            return at - finished_at
        return program.gaps.left_s(at - program.acting_since)
    return max(
        block.usual.left_s(elapsed) if block.expected_s is None else abs(block.expected_s - elapsed)
        for block in program.acting.values()
        for elapsed in (at - block.started_at,)
    )
