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
WEIGHT = 1 / 32
"""Of the latest call in the averages."""
MOST_CROWDED = 8.0
"""Beyond that a call has waited in the engine's own queue rather than for its batch."""
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
        self._reasoning = 1.0  # share of the capacity that is held by those who reason
        self._crowding = 1.0  # seconds that a token takes, as a multiple of the fastest
        self._growth = 0.0
        self._grown_at = 0.0

    def learn(self, *, seconds: float, computed: int, completion: int, reasoning: float = 1.0) -> None:
        """A call took so long, of whose prompt ``computed`` tokens were not found in the cache; at its end
        this share of the capacity was held by those who reason, it included."""
        if seconds <= 0:
            return  # no clock was fine enough
        self._reasoning += WEIGHT * (reasoning - self._reasoning)
        if completion > 1 and self.decode_s < inf and self.prefill_s < inf:
            crowding = (seconds - computed * self.prefill_s) / completion / self.decode_s
            self._crowding += WEIGHT * (min(MOST_CROWDED, max(1.0, crowding)) - self._crowding)
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

        Computing c tokens again holds up those who reason, R tokens of them, for c·p seconds: c·p·R of space
        × time. Holding them for t seconds takes c·t; but in that room others would reason, and the more there
        are the slower is each. Of a step, only what it takes with a single sequence is shared: so the room is
        worth c·t divided by how much longer a step takes than that, the crowding s. The two are equal at t =
        p·R·s, whatever c.
        """
        if capacity == inf:
            return UNMEASURED_S
        if self.prefill_s == inf:
            return min(UNMEASURED_S, capacity * self._prefill_most_s)
        return capacity * self.prefill_s * self._reasoning * self._crowding

    def grew(self, tokens: int, *, capacity: float, at: float) -> None:
        """A context that stayed here has grown."""
        self._growth = self.growth(capacity, at) + tokens
        self._grown_at = at

    def growth(self, capacity: float, at: float) -> float:
        """About what contexts have grown by within the last break-even time."""
        return self._growth * exp((self._grown_at - at) / self.break_even_s(capacity))
