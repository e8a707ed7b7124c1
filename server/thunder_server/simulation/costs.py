"""Where engines' memory goes: space × time, ∫ tokens dt, in token-seconds.

    total = decode + prefill + recompute + unused + caching

The last three are waste: contexts that were evicted and prefilled again, memory that lay idle on one replica
while somebody waited, and contexts that were held while a tool ran.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Cost:
    """Token-seconds by what they were spent on."""

    decode: float = 0.0
    prefill: float = 0.0
    recompute: float = 0.0
    unused: float = 0.0
    caching: float = 0.0

    def rounded(self) -> dict[str, int]:
        return {one.name: round(getattr(self, one.name)) for one in fields(self)}


class Memory:
    """The memory of one engine over time, in tokens.

    What it holds changes at the beginning of a step, when a program begins or ends to act there, and when
    somebody begins or ends to wait; whoever changes it calls ``settle`` first.

    >>> memory = Memory(100)
    >>> memory.decode, memory.held, memory.wanted = 50, 80, True
    >>> memory.settle(10.0)
    >>> memory.cost.rounded()
    {'decode': 500, 'prefill': 0, 'recompute': 0, 'unused': 0, 'caching': 500}
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cost = Cost()
        self.decode = 0.0  # tokens of the sequences that generate,
        self.prefill = 0.0  # of those that prefill something new,
        self.recompute = 0.0  # and of those that prefill what had been there before
        self.held = 0  # tokens of programs that act and count as resident here
        self.wanted = False  # somebody waits who could use what is idle here
        self._since = 0.0

    def scale(self, share: float) -> None:
        """All that sequences hold takes only this share of room."""
        self.decode *= share
        self.prefill *= share
        self.recompute *= share

    def settle(self, now: float) -> None:
        """Book the time since the last change."""
        seconds = now - self._since
        if seconds <= 0:
            return
        self._since = now
        cost = self.cost
        cost.decode += self.decode * seconds
        cost.prefill += self.prefill * seconds
        cost.recompute += self.recompute * seconds
        left = max(0.0, self.capacity - self.decode - self.prefill - self.recompute)
        # What acting programs want to find again is there only as far as running ones leave room for it.
        cached = min(left, self.held)
        cost.caching += cached * seconds
        if self.wanted:
            cost.unused += (left - cached) * seconds
