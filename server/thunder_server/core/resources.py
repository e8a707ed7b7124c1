"""What programs hold outside the GPU: kinds, states, and who holds what.

A *thing* is known by kind, ref and host. Each program generation that declares one has a *holding* of it with
a state of its own; the thing is reclaimed when the last of its holders has ended. Every step between states
is in ``TRANSITIONS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from thunder_server.core.decisions import Claim

TEARDOWN: Mapping[str, int] = {
    "process": 0,
    "container": 1,
    "environment": 1,
    "network": 2,
    "volume": 3,
    "image": 4,
    "directory": 5,
    "port": 6,
}
"""The order in which a program's things are reclaimed: what may be in use by others comes after them."""

DOCKER = frozenset({"container", "network", "volume", "image"})


class ResourceState(StrEnum):
    DECLARED = "declared"  # the program holds it
    RELEASED = "released"  # the program gave it back itself
    SHARED = "shared"  # the program is over, and others hold it still
    KEPT = "kept"  # the program is over, and somebody wanted it to stay
    RECLAIMING = "reclaiming"  # to be removed, as soon as it can be
    RECLAIMED = "reclaimed"  # gone
    SPARED = "spared"  # not proven to be the program's: left alone
    FAILED = "failed"  # could not be removed, for now


class Deed(Enum):
    DECLARE = auto()  # the program holds it (again)
    RELEASE = auto()  # the program holds it no longer
    KEEP = auto()  # it outlives all who held it
    LEAVE = auto()  # the program ended before others who hold it
    CONDEMN = auto()  # its last holder ended
    SUCCEED = auto()
    SPARE = auto()
    GIVE_UP = auto()
    RETRY = auto()


_S = ResourceState
TRANSITIONS: Mapping[tuple[ResourceState, Deed], ResourceState] = {
    (_S.DECLARED, Deed.DECLARE): _S.DECLARED,
    (_S.DECLARED, Deed.RELEASE): _S.RELEASED,
    (_S.DECLARED, Deed.KEEP): _S.KEPT,
    (_S.DECLARED, Deed.LEAVE): _S.SHARED,
    (_S.DECLARED, Deed.CONDEMN): _S.RECLAIMING,
    (_S.RELEASED, Deed.DECLARE): _S.DECLARED,
    (_S.SHARED, Deed.KEEP): _S.KEPT,
    (_S.SHARED, Deed.CONDEMN): _S.RECLAIMING,
    (_S.RECLAIMING, Deed.LEAVE): _S.SHARED,  # somebody declared it before it was gone
    (_S.RECLAIMING, Deed.SUCCEED): _S.RECLAIMED,
    (_S.RECLAIMING, Deed.SPARE): _S.SPARED,
    (_S.RECLAIMING, Deed.GIVE_UP): _S.FAILED,
    (_S.RECLAIMING, Deed.RELEASE): _S.RELEASED,  # word came late, before anything was tried
    (_S.FAILED, Deed.LEAVE): _S.SHARED,
    (_S.FAILED, Deed.RETRY): _S.RECLAIMING,
}

OPEN = frozenset({_S.DECLARED, _S.SHARED, _S.RECLAIMING, _S.FAILED})
"""States in which something is still to be done about a thing, now or later."""

REMEMBERED = OPEN | {_S.KEPT}
"""States that outlast what is known of the program: what was to be kept is never taken for an orphan."""


class ThingKey(NamedTuple):
    kind: str
    ref: str
    host: str | None


@dataclass(slots=True, eq=False, kw_only=True)
class Owner:
    """One generation of a program, as the ledger remembers it, also after the program is forgotten."""

    program_id: str
    generation: int
    opened_at: float
    ended_at: float | None = None
    next_opened_at: float | None = None
    shown: bool = True  # its program is known still: all that it held is shown with it
    holdings: dict[ThingKey, Holding] = field(default_factory=dict)
    pending: dict[Thing, None] = field(default_factory=dict)  # to be reclaimed, in order of teardown

    def claim(self, at: float) -> Claim:
        return Claim(
            program_id=self.program_id,
            opened_at=self.opened_at,
            ended_at=at if self.ended_at is None else self.ended_at,
            next_opened_at=self.next_opened_at,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Holding:
    """That a program holds, or held, a thing. ``keep``: it outlives its program."""

    owner: Owner
    thing: Thing
    keep: bool
    since: float
    state: ResourceState = ResourceState.DECLARED
    reason: str = ""

    def take(self, deed: Deed) -> bool:
        """Go one step of the table; whether it has this one."""
        after = TRANSITIONS.get((self.state, deed))
        if after is None:
            return False
        self.state = after
        return True


class Errand(Enum):
    """Where the removal of a thing stands."""

    NONE = auto()  # nobody is to remove it, or its turn has not come
    PARKED = auto()  # nobody serves its host
    OUT = auto()  # somebody has been told to
    BACKOFF = auto()  # an attempt failed; the next one has its time


@dataclass(slots=True, eq=False, kw_only=True)
class Thing:
    """Something that programs hold. ``pin`` and ``brought`` are what was seen when it was declared."""

    key: ThingKey
    holdings: dict[Owner, Holding] = field(default_factory=dict)
    errand: Errand = Errand.NONE
    busy: bool = False  # still being made: its removal has to wait for that
    attempts: int = 0
    error: str = ""
    pin: str | None = None
    brought: bool | None = None
    trigger: Owner | None = None  # whose end condemned it
    sent: list[Holding] = field(default_factory=list)  # on whose account somebody is at it

    @property
    def rank(self) -> int:
        return TEARDOWN[self.key.kind]

    def in_state(self, *states: ResourceState) -> list[Holding]:
        return [holding for holding in self.holdings.values() if holding.state in states]
