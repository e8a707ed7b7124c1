"""Heartbeats: who is due when."""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections import deque
from typing import Protocol


class Beating(Protocol):
    """A program that its owner keeps alive."""

    def beat(self, now: float) -> float | None:
        """Does what is due at `now`; when it wants to be asked again, None for never."""
        ...


class Pulse:
    """Programs by the time of their next heartbeat. A program that nobody holds any more beats no more."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, weakref.ref[Beating]]] = deque()  # from any thread
        self._due: list[tuple[float, int, weakref.ref[Beating]]] = []  # the sender's alone
        self._order = itertools.count()

    def watch(self, program: Beating, due: float) -> None:
        """Asks `program` to beat at `due`."""
        self._arrivals.append((due, weakref.ref(program)))

    def beat(self, now: float) -> float | None:
        """Beats whatever is due; the time of the next one, None while nothing is watched."""
        while self._arrivals:
            due, ref = self._arrivals.popleft()
            heapq.heappush(self._due, (due, next(self._order), ref))
        while self._due and self._due[0][0] <= now:
            _, order, ref = heapq.heappop(self._due)
            program = ref()
            again = None if program is None else program.beat(now)
            if again is not None:
                heapq.heappush(self._due, (again, order, ref))
        return self._due[0][0] if self._due else None
