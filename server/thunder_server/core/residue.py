"""What programs have left behind in an engine's cache, as far as it stands in others' way.

An engine hands out blank blocks first and then those that were used least recently, whoever they belong to.
So the context of a program that has ended or was paused is no free memory at once: until everything that
was used before it has gone, what comes in displaces that instead, such as the context of a program whose
tool runs. Its tokens are in the way of all programs that have been idle for longer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from thunder_server.core.program import Program


class Remnant(NamedTuple):
    """A context that was used for the last time at ``since``."""

    since: float
    serial: int  # no two compare equal
    tokens: float
    program: Program


class Residue:
    """The remnants in one engine's cache, the least recently used first. ``tokens`` is their sum."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self._remnants: list[Remnant] = []
        self._of: dict[Program, Remnant] = {}
        self._serial = 0
        self._waiting: WeakKeyDictionary[Program, float] = WeakKeyDictionary()  # since when

    def of(self, program: Program) -> float:
        """Tokens that a program has left here; where it comes back to, they are its own again."""
        remnant = self._of.get(program)
        return 0.0 if remnant is None else remnant.tokens

    def since(self, when: float) -> float:
        """Tokens of what was used at ``when`` or later."""
        tokens = self.tokens
        for remnant in self._remnants:
            if remnant.since >= when:
                break
            tokens -= remnant.tokens
        return tokens

    def waited_s(self, program: Program, at: float) -> float:
        """For how long a program has waited rather than displace what others are to find again."""
        since = self._waiting.get(program, at)
        if since < program.placed_at:
            since = at  # that was before it found a place elsewhere
        self._waiting[program] = since
        return at - since

    def leave(self, program: Program, tokens: float, since: float, limit: float) -> None:
        """A program has left; its context was used last at ``since``. An engine of ``limit`` tokens holds no
        more than these."""
        self.take(program)
        self._serial += 1
        remnant = Remnant(since, self._serial, tokens, program)
        insort(self._remnants, remnant)
        self._of[program] = remnant
        self.tokens += tokens
        while self.tokens > limit:
            self.take(self._remnants[0].program)

    def take(self, program: Program) -> None:
        """The program is back: what it left is its own again."""
        self._waiting.pop(program, None)
        remnant = self._of.pop(program, None)
        if remnant is not None:
            del self._remnants[bisect_left(self._remnants, remnant)]
            self.tokens -= remnant.tokens

    def pass_by(self, since: float) -> None:
        """Nothing that was used before ``since`` is of any worth: what was left before is in nobody's way."""
        while self._remnants and self._remnants[0].since < since:
            self.take(self._remnants[0].program)

    def clear(self) -> None:
        """The engine's cache is empty."""
        self.pass_by(inf)
