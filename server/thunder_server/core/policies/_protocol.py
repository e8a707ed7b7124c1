"""What a policy is: read access in, intents out.

The scheduler owns every change of state and every account; a policy only says what it wants. So the
invariants hold whatever a policy does, and a policy can be read without knowing the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol

from thunder_server.core.backend import Backend
from thunder_server.core.call import Call
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.program import Program


@dataclass(frozen=True, slots=True)
class Place:
    """Give the program room on this backend."""

    program: Program
    backend: Backend
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Pause the program: at once if it is acting, when its running calls end if it is reasoning."""

    program: Program
    reason: str


@dataclass(frozen=True, slots=True)
class Spare:
    """Lift the mark from a program that was to be paused."""

    program: Program
    reason: str


@dataclass(frozen=True, slots=True)
class KeepWarm:
    """Have the engine use the context of an acting program, so that it is not the next to be dropped."""

    program: Program
    reason: str


Intent = Evict | Spare


class Policy(Protocol):
    """When and whom. Bound to nothing: the same object could serve several schedulers.

    Attributes:
        name: as in ``--policy``.
        decay: x of f(t) = x^(-t), by which backends weigh acting programs; 1 for not at all.
        watermark: λmax, the share of a backend's capacity that may be filled.
        interval_s: Δt, how often ``tick`` is due; ``None``: never.
        prefix_aware: whether it asks the router (``fleet.router``) where to, and counts what programs on a
            backend have in common once.
    """

    name: ClassVar[str]

    @property
    def decay(self) -> float: ...

    @property
    def watermark(self) -> float: ...

    @property
    def interval_s(self) -> float | None: ...

    @property
    def prefix_aware(self) -> bool: ...

    def seat(self, program: Program) -> Seat | None:
        """Where a program sits in the global queue; ``None`` if it wants no backend at present."""

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place | Evict | KeepWarm]:
        """Whom to place where, and who has to give way for it. Each intent is carried out before the next is
        asked for."""

    def at_once(self, fleet: Fleet, program: Program, call: Call, at: float) -> Place | None:
        """Where to put a program whose first waiting call must not wait, because waiting cannot help."""

    def outgrown(self, fleet: Fleet, backend: Backend, call: Call) -> bool:
        """Whether a call of a program on this backend is to go where there is more room for it."""

    def overfull(self, backend: Backend, at: float) -> bool:
        """Whether programs have to leave the backend."""

    def tick(self, fleet: Fleet, at: float) -> Iterable[Intent]:
        """Who has to leave which backend, and who no longer."""

    def vacancies(self, fleet: Fleet, at: float) -> float:
        """About how many more programs could be placed now, whose size is not known yet."""

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        """Most free tokens on any backend that the program may go to; ``None``: it is not about tokens."""


class MemoryBlind:
    """The half of a policy that has no say for those that do not schedule by memory."""

    decay = 1.0
    watermark = 1.0
    interval_s: float | None = None
    prefix_aware = False

    def at_once(self, fleet: Fleet, program: Program, call: Call, at: float) -> Place | None:
        return None

    def outgrown(self, fleet: Fleet, backend: Backend, call: Call) -> bool:
        return False

    def overfull(self, backend: Backend, at: float) -> bool:
        return False

    def tick(self, fleet: Fleet, at: float) -> Iterable[Intent]:
        return ()

    def vacancies(self, fleet: Fleet, at: float) -> float:
        return inf

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return None


def least_loaded(backends: Iterable[Backend]) -> Backend | None:
    """The backend with the fewest programs per weight, then with the fewest running calls."""
    return min(backends, key=lambda b: (b.load, b.running / b.weight), default=None)


def in_order(queue: GlobalQueue) -> Iterator[Program]:
    """For policies that look at one program at a time.

    Yields each group's programs until one of them is still in the queue when the next is asked for; one
    that a backend has refused the connection to does not hold up those behind it.
    """
    for group in queue.groups():
        for program in queue.walk(group):
            call = program.first_waiting()
            excluded = call is not None and bool(call.tried)
            yield program
            if program in queue and not excluded:
                break
