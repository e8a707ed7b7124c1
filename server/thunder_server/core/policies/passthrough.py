"""``passthrough``: sticky and least-loaded, no memory, no queue but for want of a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue, Seat
from thunder_server.core.policies._protocol import MemoryBlind, Place, in_order, least_loaded
from thunder_server.core.program import Program


class Passthrough(MemoryBlind):
    """What a plain load balancer with sticky sessions does; the baseline."""

    name: ClassVar[str] = "passthrough"

    def seat(self, program: Program) -> Seat | None:
        call = program.first_waiting()
        if call is None:
            return None
        return Seat((-program.priority, 0, call.request.model or ""), 0.0)

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place]:
        if not fleet.serving(None):
            return
        for program in in_order(queue):
            backend = least_loaded(fleet.open_to(program))
            if backend is not None:
                yield Place(program, backend, "the least loaded backend")
