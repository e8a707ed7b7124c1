"""``phase``: driven by what clients tell of their programs; from those that tell nothing it infers.

One view of memory for pausing and restoring: a placed program counts in full until it ends or is paused.

**Admission.** First come, first served, to the replica where the program was before, else to the one with
most room; a program whose tool has finished queues before its call arrives. Those behind one that does not
fit may overtake it, a few at a time and only until its patience is over; then room is left to gather. Not
all room is given away: as much as contexts have grown by in the last break-even time (`Turnover`) is kept
for their growing on, since what comes in only to be pushed out again before that costs more than it brings.

**Reclaim.** An acting program keeps its place unless somebody waits for the room and it will be away for
longer than the break-even time: that is known from the duration its client expects. Where none is given, a
program that has been away for some time is taken to stay away as long again. The longest idle go first,
since that is whose KV an engine drops first: pausing another one would free nothing.

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
SLICE = 5.0
"""Break-even times after which a program's place is up to one that has waited as long."""
LOOKS = 64
"""How many of a replica's longest idle programs are looked at for room."""
LARGEST_RESERVE = 0.5
"""Growth keeps at most this share of a replica free."""


class PhasePolicy(MemoryBound):
    """This project's own scheduler."""

    name: ClassVar[str] = "phase"
    decay = 1.0
    watermark = 1.0
    interval_s: float | None = INTERVAL_S
    prefix_aware = True

    # --- admission

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is not None:
            return Seat((-program.priority, 0, call.request.model or ""), call.queued_at)
        if program.expects_call and program.tool_finished_at is not None:
            return Seat((-program.priority, 0, program.model or ""), program.tool_finished_at)
        return None

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place | Evict]:
        stuck: Counter[str] = Counter()  # by model: who found no room, in this priority or a higher one
        for group in queue.groups():
            _, _, model = group
            if stuck[model] >= OVERTAKING:
                continue
            for program in queue.walk(group):
                if fleet.router.gathers(program, at) is not None:
                    continue
                place = self._fit(fleet, program, at)
                if place is None:
                    backend, victims = self._reclaim(fleet, program, at)
                    if backend is not None:
                        yield from victims
                        place = Place(program, backend, f"there is room for {program.need} tokens now")
                if place is not None:
                    yield place
                    continue
                stuck[model] += OVERTAKING if self._waited(program, at) > PATIENCE_S else 1
                if stuck[model] >= OVERTAKING:
                    break

    def _waited(self, program: Program, at: float) -> float:
        call = program.first_waiting()
        # One that was refused a connection must not hold up those who may go where it may not.
        return 0.0 if call is None or call.tried else at - call.queued_at

    def _fit(self, fleet: Fleet, program: Program, at: float) -> Place | None:
        router = fleet.router
        need = max(1, program.need)
        fitting = [
            backend
            for backend in fleet.open_to(program)
            if self._has_room(backend, need - router.shared(program, backend), at)
        ]
        if not fitting:
            return None
        most = max(fitting, key=lambda backend: (backend.limit - backend.used(at), -backend.load))
        usual = next((backend for backend in fitting if backend.id == program.last_backend_id), most)
        best = router.route(program, fitting, usual, at)
        return Place(program, best.backend, best.reason)

    def _has_room(self, backend: Backend, need: int, at: float) -> bool:
        # With nobody there who could grow, all of it is for the asking.
        return need <= (self._room(backend, at) if backend.charges else backend.limit)

    def _room(self, backend: Backend, at: float) -> float:
        if backend.limit == inf:
            return inf
        growth = min(backend.turnover.growth(backend.limit, at), LARGEST_RESERVE * backend.limit)
        return backend.limit - growth - backend.used(at)

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return max((self._room(backend, at) for backend in fleet.open_to(program)), default=0.0)

    # --- reclaim

    def _reclaim(self, fleet: Fleet, program: Program, at: float) -> tuple[Backend | None, list[Evict]]:
        """The backend on which the least would have to go, and who."""
        best: tuple[float, Backend | None, list[Evict]] = (inf, None, [])
        for backend in fleet.open_to(program):
            lacking = max(1, program.need - fleet.router.shared(program, backend)) - self._room(backend, at)
            break_even = backend.turnover.break_even_s(backend.limit)
            slice_s = SLICE * break_even
            due = self._waited(program, at) > slice_s
            tokens = 0.0
            victims: list[Evict] = []
            for idle in islice(longest_idle(backend), LOOKS):
                if tokens >= lacking:
                    break
                away = away_s(idle, at)
                if away > break_even:
                    reason = f"it will be away for {away:.0f} s, and {program.id} waits for the room"
                elif due and at - idle.placed_at > slice_s:
                    reason = (
                        f"its time slice of {slice_s:.0f} s is over, and {program.id} has waited for longer"
                    )
                else:
                    continue
                tokens += backend.weight_of(idle, at) - fleet.router.shared(idle, backend)
                victims.append(Evict(idle, reason))
            if lacking <= tokens < best[0]:
                best = tokens, backend, victims
        return best[1], best[2]

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
    """Seconds until an acting program's next call, as far as anyone can tell.

    What has taken some time is taken to take as long again, whether that is a tool of unknown duration, the
    lateness of one, or a call that is due. Of tools that run side by side, the last one counts.
    """
    if not program.acting:
        finished_at = program.tool_finished_at
        return at - (program.acting_since if finished_at is None else finished_at)
    return max(
        elapsed if block.expected_s is None else abs(block.expected_s - elapsed)
        for block in program.acting.values()
        for elapsed in (at - block.started_at,)
    )
