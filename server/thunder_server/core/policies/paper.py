"""``paper``: the algorithm of ThunderAgent (arXiv 2602.13692), as published.

Thrash test, every Δt, per backend: Σ_R c + Σ_A c·f(t) > λmax·C, with f(t) = x^(-t) and t the seconds a
program has been acting. What is too much is taken off by S_pause = 1/c + I(acting): acting programs first,
then reasoning ones, the shortest first in both; a reasoning program is never cut off, it is marked and
leaves when its running calls end, and only as many are marked as it takes.

Restore, as soon as anything frees room (and every Δt, as the acting ones fade): by S_restore = 1/c +
I(reasoning) greedily within the room of all replicas together, then best-fit decreasing onto them, only
into real room. A backend takes programs back while it is below λmin·C, and is filled up to λmax·C.

Both tests look through the same decayed view. With decay on one side only, a program that was paused for
lack of room is restored into the very room that its pausing test does not see, and so on for ever.
Published is the choice by state and length; priorities, which it does not know, come first in the queue
and last when it comes to leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._memory import MemoryBound
from thunder_server.core.policies._protocol import Evict, Intent, Place, Spare, least_loaded
from thunder_server.core.program import Phase, Program, State


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """Δt in seconds, x of f(t) = x^(-t), and the window [λmin, λmax] in shares of a backend's capacity.

    Raises:
        ValueError: a figure makes no sense; the message names it.
    """

    interval_s: float = 5.0
    decay: float = 2.0
    lambda_max: float = 1.0
    lambda_min: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < inf:
            raise ValueError(f"the paper's interval is {self.interval_s} s; it has to be positive")
        if not 1 <= self.decay < inf:
            raise ValueError(f"the paper's decay is {self.decay}; it has to be at least 1 (1: no decay)")
        if not 0 < self.lambda_min <= self.lambda_max < inf:
            raise ValueError(
                f"the paper's lambdas are {self.lambda_min} and {self.lambda_max}; "
                "it has to be 0 < lambda-min <= lambda-max"
            )


def restore_score(context: int, phase: Phase) -> float:
    """S_restore: the higher, the earlier a program is restored."""
    return 1 / max(1, context) + (phase is Phase.REASONING)


def pause_score(context: int, phase: Phase) -> float:
    """S_pause: the higher, the earlier a program is paused."""
    return 1 / max(1, context) + (phase is Phase.ACTING)


def shortest_first(candidates: Iterable[tuple[float, Program]], release: float) -> list[Program]:
    """The first programs of an ordered list whose weights together reach ``release``.

    Re-prefilling c tokens costs about c², so the least Σc² for Σc ≥ ΔC is wanted, and taking the shortest
    first is the published answer. It is not always the least: of {9, 10} with ΔC = 10 it takes both, at 181,
    where 10 alone would do, at 100.
    """
    chosen: list[Program] = []
    for weight, program in candidates:
        if release <= 0:
            break
        chosen.append(program)
        release -= weight
    return chosen


class Paper(MemoryBound):
    """The published scheduler."""

    name: ClassVar[str] = "paper"
    prefix_aware = False

    def __init__(self, settings: PaperSettings) -> None:
        self.settings = settings

    @property
    def decay(self) -> float:
        return self.settings.decay

    @property
    def watermark(self) -> float:
        return self.settings.lambda_max

    @property
    def interval_s(self) -> float | None:
        return self.settings.interval_s

    # --- pausing

    def tick(self, fleet: Fleet, at: float) -> Iterator[Intent]:
        for backend in fleet.values():
            yield from self._relieve(backend, at)

    def _relieve(self, backend: Backend, at: float) -> Iterator[Intent]:
        overflow = backend.used(at) - backend.limit
        if overflow <= 0:
            return
        # What has faded below a token frees nothing in this view; pausing it would be for show.
        weights = {program: backend.weight_of(program, at) for program in backend.programs}
        order = sorted((p for p, weight in weights.items() if weight >= 1), key=_pause_order(backend))
        chosen = dict.fromkeys(shortest_first(((weights[p], p) for p in order), overflow))
        for program in chosen:
            if program.state is not State.MARKED:
                yield Evict(program, f"{backend.id} was over its limit by {overflow:.0f} tokens")
        for program in [program for program in backend.marked if program not in chosen]:
            yield Spare(program, f"{backend.id} can do without its leaving")

    # --- restoring

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        model = (call.request.model if call else program.model) or ""
        # Within a group 1/c falls as c rises: the lowest need has the highest score.
        return Seat((-program.priority, int(program.phase is Phase.ACTING), model), float(program.need))

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place]:
        rooms = {backend: self._room(backend, at) for backend in fleet.serving(None)}
        while True:
            chosen = self._within_total(fleet, queue, rooms)
            placed = False
            for program in sorted(chosen, key=lambda program: -program.need):
                need = program.need
                # Serving the one placed before may have filled a backend that was not even meant for it.
                fitting = [
                    b for b in fleet.open_to(program) if min(rooms[b], b.limit - b.used(at)) >= max(1, need)
                ]
                if program.last_backend_id is None:
                    backend = least_loaded(fitting)
                else:
                    backend = min(fitting, key=lambda b: (rooms[b], b.load), default=None)
                if backend is not None:
                    placed = True
                    rooms[backend] -= need
                    yield Place(program, backend, f"there is room for {need} tokens")
            if not placed:  # what fits the total but no single replica stays, and stays first in line
                return

    def _within_total(self, fleet: Fleet, queue: GlobalQueue, rooms: dict[Backend, float]) -> list[Program]:
        total = sum(room for room in rooms.values() if room > 0)
        chosen: list[Program] = []
        most_anywhere = max(rooms.values(), default=0.0)
        least = max(1.0, queue.lowest_rank())  # a rank is a need
        for group in queue.groups():
            if min(most_anywhere, total) < least:
                break
            _, _, model = group
            most = max((rooms[backend] for backend in fleet.serving(model or None)), default=0.0)
            if most < 1:
                continue
            for program in queue.walk(group):
                if program.need > min(most, total):
                    break
                chosen.append(program)
                total -= program.need
        return chosen

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return max((self._room(backend, at) for backend in fleet.open_to(program)), default=0.0)

    def _room(self, backend: Backend, at: float) -> float:
        if backend.limit == inf:
            return inf
        used = backend.used(at)
        below = used < backend.limit * self.settings.lambda_min / self.settings.lambda_max
        return backend.limit - used if below else 0.0


def _pause_order(backend: Backend) -> Callable[[Program], tuple[bool, bool, int, float]]:
    """Acting before reasoning, then who is due already, then lower priority, then S_pause: within a phase
    that is the shortest first."""

    def key(program: Program) -> tuple[bool, bool, int, float]:
        score = pause_score(backend.charges[program].tokens, program.phase)
        reasoning = program.phase is Phase.REASONING
        return reasoning, program.state is not State.MARKED, program.priority, -score

    return key
