"""A program in a string: how it travels to other processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from thunder_sdk import wire
from thunder_sdk._dialects import Identity
from thunder_sdk._exceptions import ThunderConfigError

_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What another process needs to work in a program that it does not own."""

    identity: Identity
    name: str | None = None
    generation: int = 1
    traceparent: str | None = None

    def dump(self) -> str:
        """One line of printable ASCII, fit for an environment variable."""
        it = self.identity
        fields = {
            "v": _VERSION,
            "id": it.id,
            "parent_id": it.parent_id,
            "group": it.group,
            "priority": it.priority,
            "max_wait": it.max_wait,
            "name": self.name,
            "generation": self.generation,
            "traceparent": self.traceparent,
        }
        return json.dumps({key: value for key, value in fields.items() if value is not None})

    @classmethod
    def load(cls, text: object) -> Handle:
        """The inverse. Raises ThunderConfigError for anything that `dump` did not write."""
        try:
            fields = json.loads(text) if isinstance(text, str) else None
            if not isinstance(fields, dict) or fields.get("v") != _VERSION:
                raise ValueError("it is not what Program.serialize() returns")
            return cls(
                identity=Identity(
                    id=_id(fields, "id") or "",
                    parent_id=_id(fields, "parent_id"),
                    group=_id(fields, "group"),
                    priority=_typed(fields, "priority", int),
                    max_wait=_typed(fields, "max_wait", float),
                ),
                name=_typed(fields, "name", str),
                generation=_typed(fields, "generation", int) or 1,
                traceparent=_typed(fields, "traceparent", str),
            )
        except (ValueError, RecursionError) as error:
            shown = repr(text)
            raise ThunderConfigError(f"no program context: {shown[:80]}: {error}") from error


def _id(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    if wire.is_valid_id(value) or (value is None and name != "id"):
        return value
    raise ValueError(f"{name} {value!r} must be {wire.ID_GRAMMAR}")


def _typed(fields: dict[str, object], name: str, kind: type[T]) -> T | None:
    value = fields.get(name)
    if value is None or type(value) is kind:
        return value
    raise ValueError(f"{name} {value!r} must be {kind.__name__}")
