"""How a removal ends when it does not simply succeed. Each carries the reason in words for people."""

from __future__ import annotations


class Ending(Exception):
    """Base of them all."""


class Absent(Ending):
    """There is nothing, or nothing any more: as good as removed."""


class Spared(Ending):
    """Not proven to be the program's: left alone, now and later."""


class Failed(Ending):
    """It is still there. ``retryable``: the same may succeed later."""

    def __init__(self, why: str, *, retryable: bool) -> None:
        super().__init__(why)
        self.retryable = retryable
