"""What has happened to what programs hold outside the GPU: the other half of ``events``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.core.events import EnvironmentWanted, Event, Outcome


class ReclaimEnd(StrEnum):
    """How an attempt to reclaim went."""

    GONE = "gone"  # it was removed, or was not there any more
    SPARED = "spared"  # not proven to be the program's: left alone
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServed(Event):
    """Somebody reclaims and prepares on this machine (or Docker engine) from now on."""

    host: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUnserved(Event):
    """Nobody does any longer; what is under way there has to be begun again."""

    host: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceObserved(Event):
    """What a declared name stands for. ``brought``: whether the program can have brought it."""

    kind: str
    ref: str
    host: str | None
    pin: str | None
    brought: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimEnded(Event):
    """One attempt is over. ``reason`` is for people; ``retryable``: the same may succeed later."""

    kind: str
    ref: str
    host: str | None
    end: ReclaimEnd
    reason: str = ""
    retryable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A Docker object that carries a program's label. ``created_at`` is on the server's clock."""

    kind: str
    ref: str
    name: str
    program_id: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed(Event):
    """Everything labelled on this host; ``None``: it has no engine to ask, or that did not answer."""

    host: str | None
    objects: tuple[Found, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansGiven(Event):
    """The operator has these removed: labelled objects whose programs nobody here knows."""

    host: str | None
    objects: tuple[Found, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRetried(Event):
    """The operator has what could not be reclaimed tried again; all of it, or one program's."""

    program_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentAwaited(Event):
    """A client waits for its program's environment from now on."""

    program_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentEvent(Event):
    """Base of what whoever prepares environments reports, about one generation's."""

    program_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPrepared(EnvironmentEvent):
    container_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentHibernated(EnvironmentEvent):
    """Its container is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentWoken(EnvironmentEvent):
    """Its container runs (again, or still: it could not be paused)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFailed(EnvironmentEvent):
    """It could not be prepared, or woken. ``retryable``: the same may succeed later."""

    reason: str
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredResource:
    """A resource as an earlier run of the server knew it."""

    kind: str
    ref: str
    host: str | None
    keep: bool = False
    pin: str | None = None
    brought: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecovered(Event):
    """An earlier run of the server knew this program, which holds resources still.

    It goes on with a fresh lease, or, if it had ``ended``, what it held is reclaimed.
    """

    program_id: str
    generation: int
    opened_at: float
    ended_at: float | None = None
    outcome: Outcome = Outcome.LEASE_EXPIRED  # if it had ended
    fields: Mapping[str, object] = field(default_factory=dict)
    resources: tuple[RecoveredResource, ...] = ()
    environment: EnvironmentWanted | None = None
    container_id: str | None = None  # of the environment, if it was ready
