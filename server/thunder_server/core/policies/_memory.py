"""What the policies that schedule by memory have in common: calls that waiting cannot help."""

from __future__ import annotations

from math import inf, isinf

from thunder_server.core.backend import Backend
from thunder_server.core.call import Call
from thunder_server.core.fleet import Fleet
from thunder_server.core.policies._protocol import Place
from thunder_server.core.program import Program

NEWCOMER = 1 / 8
"""Share of a backend that a program is taken to need while nobody is there to judge by."""


class MemoryBound:
    """The half of a policy that sends what is too large where there is most room."""

    def overfull(self, backend: Backend, at: float) -> bool:
        return backend.used(at) > backend.limit

    def at_once(self, fleet: Fleet, program: Program, call: Call, at: float) -> Place | None:
        """A program larger than every backend: no waiting makes one large enough.

        Its context may be what is too large, and gone anyway; the call goes where it fits by itself, if it
        does anywhere.
        """
        backends = fleet.open_to(program)
        if not backends or program.need <= max(backend.limit for backend in backends):
            return None
        fitting = [backend for backend in backends if call.tokens <= backend.limit]
        most = max(fitting or backends, key=lambda backend: backend.limit - backend.used(at))
        return Place(program, most, f"{program.need} tokens are more than any backend holds")

    def vacancies(self, fleet: Fleet, at: float) -> float:
        """As many as fit of the size that programs here have on average."""
        vacancies = 0.0
        for backend in fleet.values():
            if backend.healthy and not backend.draining:
                used = backend.used(at)
                typical = used / len(backend.charges) if used else NEWCOMER * backend.limit
                room = backend.limit - used
                vacancies += inf if isinf(room) else max(0.0, room // typical)
        return vacancies

    def outgrown(self, fleet: Fleet, backend: Backend, call: Call) -> bool:
        """It fits another backend, but never this one."""
        return call.tokens > backend.limit and any(
            call.tokens <= other.limit for other in fleet.serving(call.request.model, call.tried)
        )
