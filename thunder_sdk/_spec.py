"""What `program` was told, checked at once so that a mistake shows where it was made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from thunder_sdk import wire
from thunder_sdk._config import seconds, strings
from thunder_sdk._dialects import Identity
from thunder_sdk._environment import DockerEnvironment, engine_host
from thunder_sdk._exceptions import ThunderConfigError

if TYPE_CHECKING:
    from thunder_sdk._program import Program


class Parent(Enum):
    """Where a program's parent comes from if the caller names none."""

    CURRENT = "current"

    def __repr__(self) -> str:
        return "CURRENT"


CURRENT: Final = Parent.CURRENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The arguments of one `program` call."""

    name: str | None
    program_id: str | None
    parent: Program | str | Parent | None
    group: str | None
    priority: int | None
    tags: tuple[str, ...]
    metadata: Mapping[str, object]
    expected_context: int | None
    lease: float | None
    max_wait: float | None
    environment: DockerEnvironment | None

    @classmethod
    def checked(
        cls,
        *,
        name: object,
        program_id: object,
        parent: Program | str | Parent | None,
        group: object,
        priority: object,
        tags: Iterable[str],
        metadata: Mapping[str, object] | None,
        expected_context: object,
        lease: float | None,
        max_wait: float | None,
        environment: DockerEnvironment | None,
    ) -> Spec:
        """Raises ThunderConfigError, naming the argument and what it should be."""
        if not isinstance(environment, DockerEnvironment | None):
            raise ThunderConfigError(f"environment must be a DockerEnvironment, not {environment!r}")
        if parent is not None and parent == program_id:
            raise ThunderConfigError(f"parent: {parent} cannot be its own parent")
        return cls(
            name=None if name is None else _name(name),
            program_id=_id("program_id", program_id),
            parent=_id("parent", parent) if isinstance(parent, str) else parent,
            group=_id("group", group),
            priority=_integer("priority", priority, -wire.MAX_PRIORITY, wire.MAX_PRIORITY),
            tags=_tags(tags),
            metadata=_metadata(metadata or {}),
            expected_context=_integer("expected_context", expected_context, 0, wire.MAX_TOKENS),
            lease=None if lease is None else seconds("lease", lease, positive=True),
            max_wait=None if max_wait is None else seconds("max_wait", max_wait),
            environment=environment,
        )

    def named(self, default: str) -> Spec:
        """With `default` for a name if it has none."""
        return self if self.name is not None else replace(self, name=default[: wire.MAX_NAME])

    def fields(self, identity: Identity, lease: float) -> wire.ProgramFields:
        """The body of the ``PUT`` that opens it."""
        fields: wire.ProgramFields = {"lease_s": lease}
        if self.name is not None:
            fields["name"] = self.name
        if identity.parent_id is not None:
            fields["parent_id"] = identity.parent_id
        if identity.group is not None:
            fields["group"] = identity.group
        if identity.priority is not None:
            fields["priority"] = identity.priority
        if self.tags:
            fields["tags"] = list(self.tags)
        if self.metadata:
            fields["metadata"] = dict(self.metadata)
        if self.expected_context is not None:
            fields["expected_context_tokens"] = self.expected_context
        if self.max_wait is not None:
            fields["max_wait_s"] = self.max_wait
        if self.environment is not None:
            fields["environment"] = {**self.environment.payload(), "host": engine_host()}
        return fields


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > wire.MAX_NAME:
        raise ThunderConfigError(f"name must be a string of at most {wire.MAX_NAME} characters")
    return value


def _id(name: str, value: object) -> str | None:
    if value is None or wire.is_valid_id(value):
        return value
    raise ThunderConfigError(f"{name} must be {wire.ID_GRAMMAR}, not {value!r}")


def _integer(name: str, value: object, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ThunderConfigError(f"{name} must be an int from {least} to {most}, not {value!r}")
    return value


def _tags(tags: object) -> tuple[str, ...]:
    checked = strings("tags", tags)
    if len(checked) > wire.MAX_TAGS or any(len(tag) > wire.MAX_NAME for tag in checked):
        raise ThunderConfigError(
            f"tags must be at most {wire.MAX_TAGS}, of at most {wire.MAX_NAME} characters each"
        )
    return checked


def _metadata(metadata: Mapping[str, object]) -> Mapping[str, object]:
    """A copy that JSON can carry, taken now: what the caller changes later does not count."""
    try:
        copy = json.loads(json.dumps(metadata, allow_nan=False))
        if not isinstance(copy, dict):
            raise TypeError("it is no mapping")
    except (TypeError, ValueError, RecursionError) as error:
        raise ThunderConfigError(f"metadata must be a JSON object: {error}") from error
    return copy
