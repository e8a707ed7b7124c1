"""Whose a Docker object is, by its label and by the time at which it was made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from thunder_sdk import wire
from thunder_sdk.reclaim.endings import Spared

_SAME_CLOCK: Final = 1.0  # s that two clocks may differ and still count as one


@dataclass(frozen=True, slots=True)
class Clock:
    """Another machine's Unix time, in terms of this one's: ``there = here + ahead``."""

    ahead: float

    @classmethod
    def of_sender(cls, said: float, received: float) -> Clock:
        """The clock of whoever wrote `said` into what arrived here at `received`.

        Machines that keep time differ by less than a message may take, and then what they say is exact as
        it is. Otherwise the message counts as having taken no time: things seem begun later than they were,
        so that in doubt nothing is removed.

        >>> Clock.of_sender(100.0, 100.02), Clock.of_sender(500.0, 100.0)
        (Clock(ahead=0.0), Clock(ahead=400.0))
        """
        ahead = said - received
        return cls(0.0 if abs(ahead) <= _SAME_CLOCK else ahead)

    @classmethod
    def of_engine(cls, asked: float, said: float, answered: float) -> Clock:
        """The clock of an engine that said what time it is, asked and answered at these times of ours.

        An answer within that span is the same clock's. Otherwise it was read when the question left, which
        again errs towards removing nothing.
        """
        return cls(0.0 if asked <= said <= answered else said - asked)

    def here(self, there: float) -> float:
        """A time of that clock, on ours."""
        return there - self.ahead

    def there(self, here: float) -> float:
        """A time of ours, on that clock."""
        return here + self.ahead


@dataclass(frozen=True, slots=True)
class Owner:
    """A program that says something is its own, and when it lived, on this machine's clock."""

    program_id: str
    opened_at: float
    ended_at: float
    next_opened_at: float = math.inf  # of the next generation of the same id


def owners(claims: Sequence[wire.Claim], clock: Clock) -> tuple[Owner, ...]:
    """The `claims` of a task from a server with this `clock`."""
    return tuple(
        Owner(
            claim["program_id"],
            clock.here(claim["opened_at"]),
            clock.here(claim["ended_at"]),
            clock.here(claim.get("next_opened_at", math.inf)),
        )
        for claim in claims
    )


@dataclass(frozen=True, slots=True)
class Made:
    """When something was made: between these times of its engine's clock."""

    earliest: float
    latest: float


def require_owned(
    what: str,
    labels: Mapping[str, str],
    made: Made | None,
    owners: Sequence[Owner],
    engine_clock: Callable[[], Clock],
    *,
    brought: bool = False,
) -> None:
    """Returns if `what` belongs to one of `owners`, else raises `Spared`.

    A label decides, except between generations of one id. Without one it must have been made while an owner
    lived: `made` is None if nobody can tell, and `brought` says that it was seen not to be there before.
    """
    label = labels.get(wire.PROGRAM_LABEL)
    named = [owner for owner in owners if owner.program_id == label]
    if label is not None and not named:
        raise Spared(f"{what} carries the label {wire.PROGRAM_LABEL}={label}: it is another program's")
    if named:
        if not all(_next_generations(owner, made, engine_clock) for owner in named):
            return
        raise Spared(f"{what} is that of the next generation of program {label}, which was opened before it")
    if brought:
        return
    if made is None:
        raise Spared(
            f"{what} may have been there before: it has no label {wire.PROGRAM_LABEL}, and when it was made "
            "cannot be told here"
        )
    clock = engine_clock()
    for owner in owners:
        if clock.there(owner.opened_at) <= made.earliest and made.latest <= clock.there(owner.ended_at):
            return
    if all(made.earliest < clock.there(owner.opened_at) for owner in owners):
        raise Spared(f"{what} was there before its program: it has no label, and was made at {_words(made)}")
    raise Spared(f"{what} was made after its program had ended, at {_words(made)}, and has no label")


def _next_generations(owner: Owner, made: Made | None, engine_clock: Callable[[], Clock]) -> bool:
    """Whether it may be the next generation's."""
    if owner.next_opened_at == math.inf:
        return False
    return made is None or made.latest >= engine_clock().there(owner.next_opened_at)


def _words(made: Made) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(made.earliest))


def unix(stamp: str) -> float:
    """Unix seconds of a time as Docker writes it: RFC 3339 with up to nine decimals.

    >>> unix("2026-01-02T03:04:05.123456789Z"), unix("2026-01-02T05:04:05+02:00")
    (1767323045.123457, 1767323045.0)
    """
    head, point, tail = stamp.partition(".")
    if point:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        fraction, zone = float(f"0.{tail[:digits] or 0}"), tail[digits:]
        return datetime.fromisoformat(head + zone).timestamp() + fraction
    return datetime.fromisoformat(stamp).timestamp()
