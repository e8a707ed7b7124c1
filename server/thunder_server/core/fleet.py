"""All replicas, and which of them a call may go to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from thunder_server.core.backend import Backend, DecayedSum
from thunder_server.core.program import Program
from thunder_server.core.router import KvRouter, RouterSettings


class Fleet(Mapping[str, Backend]):
    """Backends by id. ``decay``, ``watermark`` and ``shares`` are the policy's: x of f(t) = x^(-t), λmax, and
    whether prefixes that programs share count once. ``router`` says where a program would best go."""

    def __init__(
        self,
        router: KvRouter | None = None,
        *,
        decay: float = 1.0,
        watermark: float = 1.0,
        shares: bool = False,
    ) -> None:
        self.router = router or KvRouter(RouterSettings())
        self._shares = shares
        self._decay = decay
        self._watermark = watermark
        self._backends: dict[str, Backend] = {}

    def __getitem__(self, backend_id: str) -> Backend:
        return self._backends[backend_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    def add(self, backend_id: str, at: float) -> Backend:
        """A new replica, not healthy before it has been heard of."""
        backend = Backend(
            id=backend_id,
            watermark=self._watermark,
            shares=self._shares,
            acting_tokens=DecayedSum(self._decay),
            cold_since=at,
        )
        self._backends[backend_id] = backend
        return backend

    def remove(self, backend_id: str) -> None:
        del self._backends[backend_id]

    def serving(self, model: str | None, tried: Collection[str] = ()) -> list[Backend]:
        """Those that calls for this model may be sent to now, but for the ones tried already."""
        return [b for b in self._backends.values() if b.serves(model) and b.id not in tried]

    def open_to(self, program: Program) -> list[Backend]:
        """Those that a program may be placed on now: by its first waiting call, else by its last one."""
        call = program.first_waiting()
        if call is None:
            return self.serving(program.model)
        return self.serving(call.request.model, call.tried)

    def any_healthy(self) -> bool:
        return any(backend.healthy for backend in self._backends.values())
