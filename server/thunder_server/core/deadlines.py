"""What falls due when: one heap for every kind of deadline.

Deadlines move far more often than they fall due (every call renews its program's lease), so moving one later
touches no heap: the entry already there is looked at again when it comes up. Only a deadline that moves
earlier gets a second entry. The heap therefore holds about one entry per key, and the earliest one it shows
is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SLACK = 64
"""Outdated entries are thrown out when they outnumber the others by this."""


class Deadlines(Generic[K]):
    """Deadlines by key, in seconds.

    Example:
        >>> due = Deadlines[str]()
        >>> due.set("lease", 60.0)
        >>> due.set("lease", 90.0)
        >>> due.next(), due.pop(80.0), due.pop(90.0), due.next()
        (90.0, None, 'lease', None)
    """

    def __init__(self) -> None:
        self._wanted: dict[K, float] = {}
        self._earliest: dict[K, float] = {}  # the earliest entry of each key that is in the heap
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0

    def set(self, key: K, at: float) -> None:
        """Let ``key`` fall due at ``at``, and no longer when it was going to."""
        self._wanted[key] = at
        entered = self._earliest.get(key)
        if entered is None or at < entered:
            self._push(key, at)

    def clear(self, key: K) -> None:
        """Let ``key`` not fall due at all."""
        self._wanted.pop(key, None)

    def get(self, key: K) -> float | None:
        """When ``key`` falls due."""
        return self._wanted.get(key)

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            at, _, key = self._heap[0]
            wanted = self._wanted.get(key)
            if wanted == at:
                return at
            heapq.heappop(self._heap)
            if self._earliest.get(key) == at:
                del self._earliest[key]
                if wanted is not None:
                    self._push(key, wanted)
        return None

    def pop(self, at: float) -> K | None:
        """Take one key that is due at ``at``, the earliest first."""
        due = self.next()
        if due is None or due > at:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._wanted[key], self._earliest[key]
        return key

    def _push(self, key: K, at: float) -> None:
        self._earliest[key] = at
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, key))
        if len(self._heap) > SLACK + 2 * len(self._wanted):
            self._rebuild()

    def _rebuild(self) -> None:
        self._earliest = dict(self._wanted)
        self._heap = [(at, n, key) for n, (key, at) in enumerate(self._wanted.items())]
        heapq.heapify(self._heap)
        self._pushed = len(self._heap)
