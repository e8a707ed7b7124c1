"""How a backend does: how much longer its calls take than they must, and how well its cache was predicted."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.1
"""Of the latest call in the average."""
FORGOTTEN_S = 30.0
"""Half-life of what is known, so that a replica that was slow is tried again."""


class Pace:
    """Stretch: seconds that calls take, as a multiple of what they would take if nobody else were there.

    Example:
        >>> pace = Pace()
        >>> pace.learn(seconds=12.0, alone_s=2.0, at=0.0)
        >>> pace.stretch(0.0), pace.stretch(30.0)
        (1.5, 1.25)
    """

    def __init__(self) -> None:
        self._excess = 0.0
        self._at = 0.0

    def stretch(self, at: float) -> float:
        return 1.0 + self._excess * float(0.5 ** ((at - self._at) / FORGOTTEN_S))

    def learn(self, *, seconds: float, alone_s: float, at: float) -> None:
        """A call took so long, and would have taken ``alone_s`` by itself."""
        if alone_s > 0:
            excess = max(0.0, seconds / alone_s - 1.0)
            self._excess = (1 - WEIGHT) * (self.stretch(at) - 1.0) + WEIGHT * excess
            self._at = at


@dataclass(slots=True)
class Forecast:
    """Tokens that were taken to be cached, and that were, over the calls that said so."""

    calls: int = 0
    exact: int = 0  # of which it was right to the token
    predicted: int = 0
    cached: int = 0
    off: int = 0  # by how much, calls one by one

    def add(self, predicted: int, cached: int) -> None:
        self.calls += 1
        self.exact += predicted == cached
        self.predicted += predicted
        self.cached += cached
        self.off += abs(predicted - cached)
