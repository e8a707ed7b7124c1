"""What waits to be sent: ordered, bounded, and safe to fill from threads, signal handlers and forks."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from thunder_sdk.wire import ProgramFields

LIMIT: Final = 10_000
BATCH: Final = 500


class Subject(Protocol):
    """The program a message is about; told what the server answered."""

    @property
    def id(self) -> str: ...

    @property
    def confirmed_generation(self) -> int | None:
        """The generation the server last named."""
        ...

    def learn(self, status: str, generation: int, outcome: str | None) -> None:
        """The server's last word about it."""
        ...

    def unheard(self) -> None:
        """Its end cannot be told to the server for now. May be said again."""
        ...

    def reclaimed(self) -> list[Message]:
        """Reports on what has been removed here meanwhile; the server hears them before the end."""
        ...


@dataclass(slots=True)
class Open:
    """``PUT /programs/{id}``."""

    subject: Subject
    fields: ProgramFields
    began: float  # on the monotonic clock


@dataclass(slots=True)
class Close:
    """``DELETE /programs/{id}``."""

    subject: Subject
    outcome: str


@dataclass(slots=True)
class Report:
    """One entry of ``POST /events``. The sender adds ``seq`` when it first takes it, so that it rises."""

    subject: Subject
    payload: dict[str, object]
    expendable: bool  # phases and heartbeats: a later one makes up for a lost one
    seq: int | None = field(default=None)


Message = Open | Close | Report


_Queue = deque[tuple[int, Message]]


class Outbox:
    """At most `limit` messages, the batch on its way included. Expendable ones give way first, oldest first.

    Every step is one atomic operation on a deque or a counter: no lock that a signal handler or a fork could
    meet held. `take`, `settle` and `settled_through` belong to the sender's thread.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._numbers = itertools.count(1)
        self._expendable: _Queue = deque()
        self._kept: _Queue = deque()
        self._taken: list[tuple[int, Message]] = []
        self.dropped = 0

    def put(self, message: Message) -> None:
        """Queues it; drops another one if there are too many."""
        expendable = isinstance(message, Report) and message.expendable
        (self._expendable if expendable else self._kept).append((next(self._numbers), message))
        if len(self) > self._limit and (_pop(self._expendable) or _pop(self._kept)):
            self.dropped += 1

    def waiting(self) -> list[Message]:
        """All that has not left, in no order."""
        entries = [*self._taken, *self._kept.copy(), *self._expendable.copy()]
        return [message for _, message in entries]

    def mark(self) -> int:
        """A number above those of everything queued so far."""
        return next(self._numbers)

    def take(self) -> list[Message]:
        """The next request, again until settled: one open or close, or all the reports in a row."""
        while len(self._taken) < BATCH:
            source = min(self._expendable, self._kept, key=_head)
            if self._taken and not self._joins(source):
                break
            entry = _pop(source)
            if entry is None:
                break
            self._taken.append(entry)
        return [message for _, message in self._taken]

    def _joins(self, source: _Queue) -> bool:
        return isinstance(self._taken[0][1], Report) and bool(source) and isinstance(source[0][1], Report)

    def settle(self) -> None:
        """The taken ones are delivered, or given up."""
        self._taken = []

    def clear(self) -> None:
        """Gives up everything."""
        self._expendable.clear()
        self._kept.clear()
        self._taken = []

    def settled_through(self) -> float:
        """Everything up to this number has left."""
        return min(_head(self._taken), _head(self._expendable), _head(self._kept)) - 1

    def __len__(self) -> int:
        return len(self._expendable) + len(self._kept) + len(self._taken)


def _head(messages: Sequence[tuple[int, Message]]) -> float:
    try:
        return messages[0][0]
    except IndexError:  # empty, or another thread was faster
        return math.inf


def _pop(messages: _Queue) -> tuple[int, Message] | None:
    try:
        return messages.popleft()
    except IndexError:
        return None
