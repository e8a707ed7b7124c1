"""A program's sandbox: what it should look like, and where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from thunder_server.core.events import EnvironmentWanted


class EnvironmentState(StrEnum):
    WAITING = "waiting"  # the program's turn is far off
    PREPARING = "preparing"
    READY = "ready"
    HIBERNATING = "hibernating"  # being paused, as its program is
    HIBERNATED = "hibernated"
    WAKING = "waking"
    FAILED = "failed"
    GONE = "gone"  # its program is over


class Stage(Enum):
    PREPARE = auto()
    PREPARED = auto()
    POSTPONE = auto()  # this attempt failed, the next one has its time
    FAIL = auto()
    HIBERNATE = auto()
    HIBERNATED = auto()
    WAKE = auto()
    WOKEN = auto()
    END = auto()


_E = EnvironmentState
STAGES: Mapping[tuple[EnvironmentState, Stage], EnvironmentState] = {
    (_E.WAITING, Stage.PREPARE): _E.PREPARING,
    (_E.WAITING, Stage.FAIL): _E.FAILED,  # nobody can prepare it there
    (_E.PREPARING, Stage.PREPARED): _E.READY,
    (_E.PREPARING, Stage.POSTPONE): _E.WAITING,
    (_E.PREPARING, Stage.FAIL): _E.FAILED,
    (_E.READY, Stage.HIBERNATE): _E.HIBERNATING,
    (_E.HIBERNATING, Stage.HIBERNATED): _E.HIBERNATED,
    (_E.HIBERNATING, Stage.WOKEN): _E.READY,  # it could not be paused
    (_E.HIBERNATING, Stage.FAIL): _E.FAILED,
    (_E.HIBERNATED, Stage.WAKE): _E.WAKING,
    (_E.WAKING, Stage.WOKEN): _E.READY,
    (_E.WAKING, Stage.FAIL): _E.FAILED,
    **{(state, Stage.END): _E.GONE for state in _E if state is not _E.GONE},
}

USABLE = frozenset({_E.READY, _E.FAILED, _E.GONE})
"""States that nobody has to wait in: it is there, or will never be."""


@dataclass(slots=True, eq=False, kw_only=True)
class Environment:
    """One program's environment. ``exposed_since``: since when somebody waits for it, if anybody does."""

    wanted: EnvironmentWanted
    name: str
    state: EnvironmentState = EnvironmentState.WAITING
    reason: str = "its program's turn is far off"
    container_id: str | None = None
    attempts: int = 0
    not_before: float = 0.0  # the time of the next attempt
    awaited_since: float | None = None  # a client waits for it
    held_since: float | None = None  # its program could be restored, but for it
    begun_at: float | None = None
    prepared_s: float | None = None

    @property
    def image(self) -> str:
        return self.wanted.image

    @property
    def exposed_since(self) -> float | None:
        return min(
            (since for since in (self.awaited_since, self.held_since) if since is not None), default=None
        )

    def take(self, stage: Stage) -> bool:
        """Go one step of the table; whether it has this one."""
        after = STAGES.get((self.state, stage))
        if after is None:
            return False
        self.state = after
        return True


def container_name(program_id: str, generation: int) -> str:
    """What the container of a program's environment is called: the same whenever it is prepared again.

    >>> container_name("fix-issue-7", 1)
    'thunder-058c11982b0285c3fb4d'
    """
    return "thunder-" + hashlib.sha256(f"{program_id}/{generation}".encode()).hexdigest()[:20]
