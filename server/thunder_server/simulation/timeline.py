"""Virtual time: what is to happen, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """Callbacks by the time they are due; those of one instant in the order they were entered.

    >>> timeline, said = Timeline(), []
    >>> timeline.at(2.0, lambda: said.append("later"))
    >>> timeline.at(1.0, lambda: said.append("sooner"))
    >>> timeline.run(), said, timeline.now
    (True, ['sooner', 'later'], 2.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        """How many things are yet to happen."""
        return len(self._entries)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Enter something; what lies in the past happens now."""
        self._serial += 1
        heapq.heappush(self._entries, (max(when, self.now), self._serial, what))

    def run(self, until: Callable[[], bool] = lambda: False, *, limit: float = float("inf")) -> bool:
        """Let things happen until there is nothing left or ``until`` holds; False if ``limit`` (seconds)
        came first."""
        while self._entries and not until():
            when, _, what = heapq.heappop(self._entries)
            if when > limit:
                return False
            self.now = when
            what()
        return True
