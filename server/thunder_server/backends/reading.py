"""What one look at a backend says, and how an engine is looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """What a backend said to one GET: any status, the whole body."""

    status: int
    body: bytes


Get = Callable[[str], Awaitable[Answer | None]]
"""GET of a path below the backend's root with its key; ``None`` when it did not answer in time, or at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Capacity and load as the engine itself counts them; ``None`` for what it does not say."""

    capacity_tokens: int | None = None
    used_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    prefix_hits: float | None = None  # tokens, rising while the engine lives
    prefix_queries: float | None = None


class Engine(Protocol):
    """One kind of engine: where it tells that it lives, what it serves, and how full it is."""

    async def alive(self, get: Get) -> bool:
        """Whether it can serve calls."""

    async def load(self, get: Get) -> Load | None:
        """Its capacity and load; ``None`` where these are not readable."""


Model = Mapping[str, Any]
"""An entry of ``/v1/models`` as the engine wrote it; ``id`` is a string."""
