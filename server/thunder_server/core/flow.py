"""How fast room comes free, and how long preparing takes: what has been seen lately."""

from __future__ import annotations

from collections import OrderedDict, deque
from math import exp
from statistics import median
from typing import NamedTuple

MEMORY_S = 60.0
"""What came free so long ago counts 1/e."""
SAMPLES = 16
IMAGES = 1000
UNKNOWN_S = 30.0
"""How long preparing is taken to last for an image that was never prepared: of the order of a real one."""


class Rate(NamedTuple):
    """Per second."""

    tokens: float
    programs: float


class Flow:
    """Room that comes free per second, in tokens and in programs; older amounts fade.

    Example:
        >>> flow = Flow()
        >>> for second in range(1, 201):
        ...     flow.freed(500, at=float(second))
        >>> round(flow.per_second(200.0).tokens, -1), round(flow.per_second(200.0).programs)
        (500.0, 1)
    """

    def __init__(self) -> None:
        self._tokens = self._programs = 0.0
        self._first_at: float | None = None
        self._at = 0.0

    def freed(self, tokens: int, at: float) -> None:
        """A program has left a backend, and this many tokens."""
        if self._first_at is None:
            self._first_at = at
        self._fade(at)
        self._tokens += tokens
        self._programs += 1

    def per_second(self, at: float) -> Rate:
        """Seen since the first program left, as far as that is remembered."""
        if self._first_at is None:
            return Rate(0.0, 0.0)
        self._fade(at)
        seen_s = MEMORY_S * (1 - exp((self._first_at - at) / MEMORY_S))
        return Rate(self._tokens / max(seen_s, 1.0), self._programs / max(seen_s, 1.0))

    def _fade(self, at: float) -> None:
        left = exp((self._at - at) / MEMORY_S)
        self._tokens *= left
        self._programs *= left
        self._at = at


class PrepareTimes:
    """Seconds that preparing takes, by image: the median of the latest, which no single slow pull moves.

    Example:
        >>> times = PrepareTimes()
        >>> times.expected("python:3.12")
        30.0
        >>> for seconds in (2.0, 3.0, 90.0):
        ...     times.learn("python:3.12", seconds)
        >>> times.expected("python:3.12")
        3.0
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def learn(self, image: str, seconds: float) -> None:
        """It took this long just now."""
        self._seen.setdefault(image, deque(maxlen=SAMPLES)).append(seconds)
        self._seen.move_to_end(image)
        if len(self._seen) > IMAGES:
            self._seen.popitem(last=False)

    def expected(self, image: str) -> float:
        """How long it will take."""
        seen = self._seen.get(image)
        return median(seen) if seen else UNKNOWN_S
