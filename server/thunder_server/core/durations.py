"""How long tools take, and programs stay away, learned from those that have.

The latest durations of each kind are kept as they are, few of them, so that one that hung for an hour moves
nothing: everything is asked of them by rank.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from math import inf

SAMPLES = 128
"""How many of the latest durations of a kind are kept."""
ENOUGH = 5
"""From how many on they say something."""
MANY = 20
RARE = 0.02
"""What goes on for longer than all but this share of ``MANY`` is not one of them."""
KINDS = 1024
"""How many kinds of tools are known at a time, the latest used ones."""


class Durations:
    """The latest durations of one kind, seconds.

    Example:
        >>> durations = Durations()
        >>> for seconds in (1, 2, 3, 4, 50, 60, 70, 80, 90):
        ...     durations.learn(seconds)
        >>> durations.left_s(0), durations.left_s(10)
        (50, 60)
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def learn(self, seconds: float) -> None:
        """One has ended."""
        self._latest.append(seconds)
        insort(self._sorted, seconds)
        if len(self._latest) > SAMPLES:
            oldest = self._latest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def longer(self, elapsed: float) -> int:
        """How many took longer."""
        return len(self._sorted) - bisect_right(self._sorted, elapsed)

    def left_s(self, elapsed: float) -> float:
        """What is left of one that has gone on for ``elapsed`` seconds: the median of those that took longer.

        Too few of them say nothing; then what has taken some time is taken to take as long again. But if next
        to none of many took as long, this one is not like them, and will not end: infinite.
        """
        longer = self.longer(elapsed)
        if longer < RARE * len(self._sorted) and len(self._sorted) >= MANY:
            return inf
        if longer < ENOUGH:
            return elapsed
        return self._sorted[len(self._sorted) - 1 - longer // 2] - elapsed


class Kinds:
    """Durations by the name of a tool; a bounded number of names."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, Durations] = OrderedDict()

    def of(self, name: str) -> Durations:
        """Those of this name."""
        found = self._kinds.get(name)
        if found is None:
            found = self._kinds[name] = Durations()
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(name)
        return found
