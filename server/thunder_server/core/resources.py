"""The ledger of what a program holds outside the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.core.events import ResourceDeclared, ResourceReleased


class ResourceState(StrEnum):
    DECLARED = "declared"  # the program holds it
    RELEASED = "released"  # the program gave it back itself


@dataclass(slots=True, kw_only=True)
class Resource:
    """One thing, known by kind, ref and host. ``keep``: it outlives its program."""

    kind: str
    ref: str
    host: str | None
    keep: bool
    state: ResourceState = ResourceState.DECLARED


@dataclass(slots=True)
class ResourceLedger:
    """What one program has declared, in that order. Declaring again takes the latest word on ``keep``."""

    _entries: dict[tuple[str, str, str | None], Resource] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._entries.values())

    def declare(self, event: ResourceDeclared) -> None:
        self._entries[event.kind, event.ref, event.host] = Resource(
            kind=event.kind, ref=event.ref, host=event.host, keep=event.keep
        )

    def release(self, event: ResourceReleased) -> None:
        """Note that the program gave it back; one that was never declared is none of ours."""
        entry = self._entries.get((event.kind, event.ref, event.host))
        if entry is not None:
            entry.state = ResourceState.RELEASED
