"""``passthrough``: sticky and least-loaded, no memory, no queue but for want of a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.call import Call
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._protocol import Intent, Place, in_order, least_loaded
from thunder_server.core.program import Program


class Passthrough:
    """What a plain load balancer with sticky sessions does; the baseline."""

    name: ClassVar[str] = "passthrough"
    decay = 1.0
    watermark = 1.0
    interval_s: float | None = None

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is None:
            return None
        return Seat((-program.priority, 0, call.request.model or ""), 0.0)

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place]:
        for program in in_order(queue):
            backend = least_loaded(fleet.open_to(program))
            if backend is not None:
                yield Place(program, backend, "the least loaded backend")

    def at_once(self, fleet: Fleet, program: Program, call: Call, at: float) -> Place | None:
        return None

    def outgrown(self, fleet: Fleet, backend: Backend, call: Call) -> bool:
        return False

    def overfull(self, backend: Backend, at: float) -> bool:
        return False

    def tick(self, fleet: Fleet, at: float) -> list[Intent]:
        return []

    def room(self, fleet: Fleet, program: Program, at: float) -> float | None:
        return None
