"""What it costs a backend to exchange one context for another, learned from the calls it has answered.

Two lower envelopes, of the fastest decoding and, net of that, of the fastest prefilling that has been seen:
queues and batches only ever add to a call's time, so the fastest is nearest to what the engine can do. They
rise slowly as long as nothing touches them, so that a slower engine is noticed too.
"""

from __future__ import annotations

from math import exp, inf

RELAX = 1.0005
"""By how much the envelopes rise with every call."""
PREFILL_SHARE = 1 / 3
"""A call tells how fast prefilling is if it can have spent this part of its time on it."""
UNMEASURED_S = 60.0
"""Break-even time of a backend that has not told enough: of the order of large engines."""


class Turnover:
    """Learned figures of one backend; times are seconds, sizes tokens.

    Example:
        >>> turnover = Turnover()
        >>> turnover.learn(seconds=2.0, computed=10, completion=100)  # 20 ms a token
        >>> turnover.learn(seconds=3.0, computed=10_000, completion=50)  # the other 2 s are prefilling
        >>> round(turnover.break_even_s(100_000))
        20
    """

    def __init__(self) -> None:
        self.decode_s = inf  # per token
        self.prefill_s = inf  # per token
        self._prefill_most_s = inf  # per token: no call can have spent more on it than all of its time
        self._growth = 0.0
        self._grown_at = 0.0

    def learn(self, *, seconds: float, computed: int, completion: int) -> None:
        """A call took so long, of whose prompt ``computed`` tokens were not found in the cache."""
        if seconds <= 0:
            return  # no clock was fine enough
        self.decode_s *= RELAX
        self.prefill_s *= RELAX
        self._prefill_most_s *= RELAX
        if completion > 0:
            self.decode_s = min(self.decode_s, seconds / completion)
        left = seconds - completion * self.decode_s if completion else seconds
        if computed > 0:
            self._prefill_most_s = min(self._prefill_most_s, seconds / computed)
            if left >= PREFILL_SHARE * seconds:
                self.prefill_s = min(self.prefill_s, left / computed)
        if self.prefill_s != inf:
            # Of a call that computed next to nothing, what is left tells how long it had to wait.
            self.prefill_s = min(self.prefill_s, self._prefill_most_s)

    def alone_s(self, *, computed: int, completion: int) -> float:
        """How long a call would take if nobody else were there; 0 while that is not known."""
        if self.decode_s == inf or self.prefill_s == inf:
            return 0.0
        return max(0, computed) * self.prefill_s + completion * self.decode_s

    def break_even_s(self, capacity: float) -> float:
        """How long a context must be gone for its room to be worth more than computing it again.

        Holding c tokens for t seconds takes c·t of space × time; computing them again takes the engine, and
        so all of its capacity K, for c·p seconds. The two are equal at t = K·p, whatever c: the time in which
        the engine could prefill all of its cache.
        """
        if capacity == inf:
            return UNMEASURED_S
        if self.prefill_s == inf:
            return min(UNMEASURED_S, capacity * self._prefill_most_s)
        return capacity * self.prefill_s

    def grew(self, tokens: int, *, capacity: float, at: float) -> None:
        """A context that stayed here has grown."""
        self._growth = self.growth(capacity, at) + tokens
        self._grown_at = at

    def growth(self, capacity: float, at: float) -> float:
        """About what contexts have grown by within the last break-even time."""
        return self._growth * exp((self._grown_at - at) / self.break_even_s(capacity))
