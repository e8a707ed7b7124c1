"""All replicas, and which of them a call may go to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thunder_server.core.backend import Backend, DecayedSum
from thunder_server.core.call import Call


class Fleet(Mapping[str, Backend]):
    """Backends by id. ``decay`` and ``watermark`` are the policy's: x of f(t) = x^(-t), and λmax."""

    def __init__(self, *, decay: float = 1.0, watermark: float = 1.0) -> None:
        self._decay = decay
        self._watermark = watermark
        self._backends: dict[str, Backend] = {}

    def __getitem__(self, backend_id: str) -> Backend:
        return self._backends[backend_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    def add(self, backend_id: str) -> Backend:
        """A new replica, not healthy before it has been heard of."""
        backend = Backend(id=backend_id, watermark=self._watermark, acting_tokens=DecayedSum(self._decay))
        self._backends[backend_id] = backend
        return backend

    def remove(self, backend_id: str) -> None:
        del self._backends[backend_id]

    def serving(self, model: str | None) -> list[Backend]:
        """Those that calls for this model may go to."""
        return [backend for backend in self._backends.values() if backend.serves(model)]

    def open_to(self, call: Call | None) -> list[Backend]:
        """Those that a waiting call, or a program without one, may be sent to now."""
        if call is None:
            return self.serving(None)
        return [backend for backend in self.serving(call.request.model) if backend.id not in call.tried]

    def any_healthy(self) -> bool:
        return any(backend.healthy for backend in self._backends.values())
