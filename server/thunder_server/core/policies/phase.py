"""``phase``: driven by what clients tell of their programs; from those that tell nothing it infers.

One view of memory for pausing and restoring: a placed program counts in full until it ends or is paused,
what several have in common counts once.

**Admission.** First come, first served; where to, of the replicas with room, is the router's choice. A
program whose tool has finished queues before its call arrives. Who holds up others (the stragglers of a
group, whoever a parent waits for) has a head start. Those behind one that does not fit may overtake it, a few
at a time and only until its patience is over; then room is left to gather. Some is kept for the growth of
those who are there.

**Reclaim.** An acting program keeps its place unless somebody waits for the room and it will be away for so
long that computing its context again costs less than holding it (`Turnover`): by the duration its client
expects, else by what that tool has usually taken. Or its time slice is over, and somebody has waited for
longer.

**Patience with the cache.** An engine drops what was used least recently. So room that programs have left
is not free while others have been idle for longer: who comes in would displace those (`Residue`). It waits
for them to return, if that takes less than what it displaces is worth. Or, to *keep them warm*, they are
used first: then the engine drops what programs have left.

**Overflow.** When contexts have outgrown a replica, acting programs leave, the longest idle first; then,
only as far as needed, reasoning ones when their calls end, the lowest priority, the least often paused and
the shortest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._idle import away_s, longest_idle
from thunder_server.core.policies._memory import MemoryBound
from thunder_server.core.policies._protocol import Evict, Intent, KeepWarm, Place, Spare
from thunder_server.core.program import Phase, Program, State

INTERVAL_S = 1.0
PATIENCE_S = 300.0
"""Who has waited this long is not overtaken any more."""
OVERTAKING = 8
"""How many that do not fit are looked at before those behind them, of whatever priority, have to wait."""
HEAD_START_S = 300.0
"""Who holds up others goes before those that have waited for longer by no more than this."""
LARGEST_RESERVE = 0.5
"""Share of a replica that is kept free at most for what contexts grow by."""
SLICE = 5.0
"""Break-even times after which a program's place is up to one that has waited as long; so many more for each
time that it was paused before."""
LARGE = 0.25
"""Who needs more than this share of a replica cannot count on so many others being idle at one moment."""
LOOKS = 64
"""How many of a replica's longest idle programs are looked at for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSettings:
    """``keep_warm``: engines are sent the latest prompts of acting programs again before they would drop
    those contexts in favour of what nobody needs any longer."""

    keep_warm: bool = False


class PhasePolicy(MemoryBound):
    """This project's own scheduler."""

    name: ClassVar[str] = "phase"
    decay = 1.0
    watermark = 1.0
    interval_s: float | None = INTERVAL_S
    prefix_aware = True

    def __init__(self, settings: PhaseSettings | None = None) -> None:
        self._keep_warm = settings is not None and settings.keep_warm

    # --- admission

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is not None:
            model, since = call.request.model, call.queued_at
        elif program.expects_call and program.tool_finished_at is not None:
            model, since = program.model, program.tool_finished_at
        else:
            return None
        return Seat((-program.priority, 0, model or ""), since - self._head_start_s(program))

    def _head_start_s(self, program: Program) -> float:
        return HEAD_START_S if program.holds_up_others else 0.0

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place | Evict | KeepWarm]:
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
                    yield from victims
                    if backend is not None:
                        place = Place(program, backend, f"there is room for {program.need} tokens now")
                if place is not None:
                    if self._keep_warm:
                        yield from self._kept_warm(fleet, place, at)
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
        """Where there is room, and it is time to take it."""
        fitting = [backend for backend in fleet.open_to(program) if self._fits(fleet, backend, program, at)]
        if not fitting:
            return None
        most = max(fitting, key=lambda backend: (backend.limit - backend.used(at), -backend.load))
        usual = next((backend for backend in fitting if backend.id == program.last_backend_id), most)
        best = fleet.router.route(program, fitting, usual, at)
        return Place(program, best.backend, best.reason)

    def _fits(self, fleet: Fleet, backend: Backend, program: Program, at: float) -> bool:
        if not backend.charges:  # nobody is there who could grow
            return program.need <= backend.limit
        if self._lacking(fleet, backend, program, at) > 0:
            return False
        return self._worth_displacing(fleet, backend, program, (), at)

    def _lacking(self, fleet: Fleet, backend: Backend, program: Program, at: float) -> float:
        """Tokens that are missing on the backend for the program."""
        return max(1, program.need - fleet.router.shared(program, backend)) - self._room(backend, at)

    def _room(self, backend: Backend, at: float) -> float:
        if backend.limit == inf:
            return inf
        return backend.limit - self._reserve(backend, at) - backend.used(at)

    def _reserve(self, backend: Backend, at: float) -> float:
        """What contexts grow by in a break-even time: later others will have ended. Who comes in only to be
        pushed out again costs more than it brings."""
        return min(backend.turnover.growth(backend.limit, at), LARGEST_RESERVE * backend.limit)

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return max((self._room(backend, at) for backend in fleet.open_to(program)), default=0.0)

    # --- reclaim

    def _reclaim(self, fleet: Fleet, program: Program, at: float) -> tuple[Backend | None, list[Evict]]:
        """The backend on which the least would have to go, and who.

        Where the least is missing for a large one that is not overtaken any more, they go one by one.
        """
        best: tuple[float, Backend | None, list[Evict]] = (inf, None, [])
        nearest: tuple[float, list[Evict]] = (inf, [])
        for backend in fleet.open_to(program):
            if not program.waiting and self._is_away_for_long(backend, program, at):
                continue  # its tool has finished, but the call does not come: it would have to go again
            lacking = self._lacking(fleet, backend, program, at)
            tokens = 0.0
            victims: list[Evict] = []
            for idle in islice(longest_idle(backend), LOOKS):
                if tokens >= lacking:
                    break
                reason = self._gives_way(backend, idle, program, at)
                if reason is not None:
                    tokens += backend.weight_of(idle, at) - fleet.router.shared(idle, backend)
                    victims.append(Evict(idle, reason))
            if (
                victims
                and lacking <= tokens < best[0]
                and self._worth_displacing(fleet, backend, program, [evict.program for evict in victims], at)
            ):
                best = tokens, backend, victims
            elif program.need > LARGE * backend.limit:
                nearest = min(nearest, (lacking - tokens, victims), key=lambda found: found[0])
        if best[1] is None and self._waited(program, at) > PATIENCE_S:
            return None, nearest[1]
        return best[1], best[2]

    def _gives_way(self, backend: Backend, idle: Program, program: Program, at: float) -> str | None:
        """Why an idle program has to make room for one that waits, if it has to. Not at the instant at which
        it was given its own room: two whose calls are overdue would make room for each other for ever."""
        if idle.placed_at == at and idle.expects_call:
            return None
        if idle.priority != program.priority:
            return f"{program.id} has a higher priority" if idle.priority < program.priority else None
        if self._is_away_for_long(backend, idle, at):
            away = self._away_s(idle, at)
            return f"it will be away for {away:.0f} s, and {program.id} waits for the room"
        slice_s = SLICE * self._break_even_s(backend) * (1 + idle.pauses)
        if self._waited(program, at) > slice_s and at - idle.placed_at > slice_s:
            return f"its time slice of {slice_s:.0f} s is over, and {program.id} has waited for longer"
        return None

    def _is_away_for_long(self, backend: Backend, program: Program, at: float) -> bool:
        return self._away_s(program, at) > self._break_even_s(backend)

    def _away_s(self, program: Program, at: float) -> float:
        return away_s(program, at)

    def _break_even_s(self, backend: Backend) -> float:
        return backend.turnover.break_even_s(backend.limit)

    # --- patience with the cache

    def _worth_displacing(
        self, fleet: Fleet, backend: Backend, program: Program, leaving: Collection[Program], at: float
    ) -> bool:
        """Whether the program should come in now although it displaces what idle programs are to find again.

        What is displaced takes the engine so many seconds to compute again; waiting for those idle programs
        leaves the room unused for as long. Where one of them is always away, waiting for the next counts
        together with the waiting before: nobody waits for more than what is displaced is worth.
        """
        if self._keep_warm:
            return True  # it will not displace any
        residue = backend.residue
        idle = list(islice(longest_idle(backend), LOOKS))
        residue.pass_by(backend.idle_since(idle[0]) if idle else inf)
        staying = [one for one in idle if one not in leaving]
        if not staying:
            return True
        oldest = backend.idle_since(staying[0])
        # Who leaves, and was used before all that stay, is dropped first; the others are in the way.
        free = backend.limit - backend.used(at) - residue.since(oldest)
        free += sum(backend.weight_of(one, at) for one in leaving if backend.idle_since(one) < oldest)
        need = max(1, program.need - fleet.router.shared(program, backend) - residue.of(program))
        displaced = min(need, need - free)
        if displaced <= 0:
            return True
        wait_s = 0.0
        left = displaced
        for one in staying:
            wait_s = max(wait_s, self._away_s(one, at))
            left -= backend.weight_of(one, at)
            if left <= 0:
                break
        wait_s += residue.waited_s(program, at)
        return wait_s * need > self._break_even_s(backend) * displaced

    # --- keeping warm

    def _kept_warm(self, fleet: Fleet, place: Place, at: float) -> Iterator[KeepWarm]:
        """Who has to be used now so that the newcomer displaces what others have left behind: who has been
        idle for longest, until there is enough that is older than the next one."""
        program, backend = place.program, place.backend
        if backend.limit == inf:
            return
        residue = backend.residue
        need = program.need - fleet.router.shared(program, backend) - residue.of(program)
        free = backend.limit - backend.used(at)
        stale = []
        for one in islice(longest_idle(backend), LOOKS):
            younger = residue.since(backend.idle_since(one))
            if not younger or free - younger >= need:
                break
            if one.resident:
                stale.append(one)
        for one in stale:
            yield KeepWarm(one, f"{backend.id} drops what was used longest ago, and {program.id} comes in")

    # --- overflow

    def tick(self, fleet: Fleet, at: float) -> Iterator[Intent]:
        for backend in fleet.values():
            if self.overfull(backend, at):
                yield from self._relieve(backend, at)

    def _relieve(self, backend: Backend, at: float) -> Iterator[Intent]:
        over = backend.used(at) - backend.limit
        reasoning = [p for p in backend.programs if p.phase is Phase.REASONING]
        reasoning.sort(
            key=lambda p: (p.state is not State.MARKED, p.priority, p.pauses, backend.charges[p].tokens)
        )
        reason = f"{backend.id} was over its capacity by {over:.0f} tokens"
        for program in [*longest_idle(backend), *reasoning]:
            marked = program.state is State.MARKED
            if over > 0:
                over -= backend.weight_of(program, at)
                if not marked:
                    yield Evict(program, reason)
            elif marked:
                yield Spare(program, f"{backend.id} can do without its leaving")
