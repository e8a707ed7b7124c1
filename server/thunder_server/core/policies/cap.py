"""``cap``: at most N programs on each backend, first come, first served within a priority.

A program takes its slot with its first call and keeps it until it ends; what waits are newcomers, and
programs that lost their backend. The one exception: parents that wait for children in the queue must not hold
all slots of a backend, or nobody would ever go on. Then one of them is paused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._protocol import Evict, MemoryBlind, Place, in_order, least_loaded
from thunder_server.core.program import Phase, Program, State


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSettings:
    """``programs``: how many a backend holds at a time.

    Raises:
        ValueError: fewer than 1.
    """

    programs: int = 32

    def __post_init__(self) -> None:
        if self.programs < 1:
            raise ValueError(f"cap is {self.programs}; it has to be at least 1 program per backend")


class Cap(MemoryBlind):
    """Admission by number, the usual way to keep agents from thrashing a cache."""

    name: ClassVar[str] = "cap"

    def __init__(self, settings: CapSettings) -> None:
        self.settings = settings

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is None:
            return None
        return Seat((-program.priority, 0, call.request.model or ""), call.queued_at)

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place | Evict]:
        for program in in_order(queue):
            if not any(self._has_slot(backend) for backend in fleet.serving(None)):
                stuck = next((b for b in fleet.open_to(program) if all(map(_waits, b.programs))), None)
                if stuck is None:
                    return
                yield Evict(next(iter(stuck.programs)), f"all on {stuck.id} wait for children in the queue")
            backend = least_loaded(b for b in fleet.open_to(program) if self._has_slot(b))
            if backend is not None:
                yield Place(program, backend, f"one of {self.settings.programs} slots was free")

    def vacancies(self, fleet: Fleet, at: float) -> float:
        return sum(max(0, self.settings.programs - len(b.programs)) for b in fleet.serving(None))

    def _has_slot(self, backend: Backend) -> bool:
        return len(backend.programs) < self.settings.programs


def _waits(parent: Program) -> bool:
    """It can only go on when a child that has no place has gone on."""
    return parent.phase is Phase.ACTING and any(
        child.state is State.QUEUED or (child.state is State.UNPLACED and child.waiting)
        for child in parent.children
    )
