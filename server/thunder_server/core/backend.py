"""One engine replica: what it can hold, and what the programs on it hold or are due to.

The thrash test weighs reasoning programs in full and acting ones by f(t) = x^(-t), t the seconds they have
been acting. Because f is memoryless (f(t + d) = f(t)·f(d)), the weighted sum of all acting programs decays
as one number and is kept without looking at any program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from thunder_server.core.cached import Cached
from thunder_server.core.call import Call
from thunder_server.core.pace import Forecast, Pace
from thunder_server.core.program import Program
from thunder_server.core.residue import Residue
from thunder_server.core.sharing import Sharing
from thunder_server.core.turnover import Turnover


class DecayedSum:
    """A sum of amounts each of which fades by ``base`` to the minus seconds since its own beginning.

    Example:
        >>> fading = DecayedSum(2.0)
        >>> fading.add(1024.0, since=0.0, at=0.0)
        >>> fading.value(3.0)
        128.0
    """

    def __init__(self, base: float) -> None:
        self._base = base
        self._value = 0.0
        self._at = 0.0
        self._members = 0

    def weight(self, amount: float, since: float, at: float) -> float:
        """What ``amount`` counts at ``at``."""
        return amount * float(self._base ** (since - at))

    def value(self, at: float) -> float:
        """The sum at ``at``, which never goes back."""
        if self._members and at > self._at:
            self._value *= float(self._base ** (self._at - at))
        self._at = at
        return self._value

    def add(self, amount: float, since: float, at: float) -> None:
        self._value = self.value(at) + self.weight(amount, since, at)
        self._members += 1

    def remove(self, amount: float, since: float, at: float) -> None:
        """Take out what was added with the same ``amount`` and ``since``."""
        self._members -= 1
        left = self.value(at) - self.weight(amount, since, at)
        self._value = max(0.0, left) if self._members else 0.0  # the last one takes the rounding along


class Charge(NamedTuple):
    """What one program is charged for on one backend: reasoning (``since`` ``None``) or idle since then."""

    tokens: int
    since: float | None


@dataclass(slots=True, kw_only=True)
class Report:
    """The engine's own word, for people to look at; ``None`` where it does not say."""

    used_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    hit_rate: float | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Backend:
    """A replica and its accounts.

    ``limit`` is what schedulers fill: λmax of the capacity, infinite while no capacity is known. A program
    that claims more than the limit counts as exactly the limit: the backend is full with it, no more.
    """

    id: str
    weight: float = 1.0
    operator_capacity: int | None = None
    engine_capacity: int | None = None
    watermark: float = 1.0
    healthy: bool = False
    draining: bool = False
    models: frozenset[str] | None = None
    report: Report = field(default_factory=Report)

    programs: dict[Program, None] = field(default_factory=dict)  # placed here, in order
    marked: dict[Program, None] = field(default_factory=dict)  # of those, the ones due to leave
    calls: dict[Call, None] = field(default_factory=dict)  # running here
    charges: dict[Program, Charge] = field(default_factory=dict)
    reasoning_tokens: float = 0
    acting_tokens: DecayedSum
    residue: Residue = field(default_factory=Residue)
    turnover: Turnover = field(default_factory=Turnover)

    shares: bool = False  # whether what programs have in common counts once
    sharing: Sharing[Program] = field(default_factory=Sharing)
    cache: Cached = field(default_factory=Cached)
    cold_since: float = 0.0  # when its cache was empty for sure
    pace: Pace = field(default_factory=Pace)
    forecast: Forecast = field(default_factory=Forecast)

    @property
    def capacity_tokens(self) -> int | None:
        """KV capacity: the operator's word, else the engine's, else unknown."""
        return self.operator_capacity or self.engine_capacity

    @property
    def running(self) -> int:
        """How many calls run here."""
        return len(self.calls)

    @property
    def limit(self) -> float:
        capacity = self.capacity_tokens
        return inf if capacity is None else capacity * self.watermark

    @property
    def load(self) -> float:
        """Programs per unit of weight, those placed elsewhere but still running here included."""
        return len(self.charges) / self.weight

    def used(self, at: float) -> float:
        """Tokens in use, in the decayed view, for pausing and restoring alike."""
        used = self.reasoning_tokens + self.acting_tokens.value(at)
        return max(0.0, used - self.sharing.credit) if self.shares else used

    def serves(self, model: str | None) -> bool:
        """Whether calls for this model may come here now."""
        known = model is None or self.models is None or model in self.models
        return known and self.healthy and not self.draining

    def weight_of(self, program: Program, at: float) -> float:
        """What a program on this backend counts in ``used``."""
        charge = self.charges[program]
        amount = min(charge.tokens, self.limit)
        return amount if charge.since is None else self.acting_tokens.weight(amount, charge.since, at)

    def emptied(self, *, exact: bool, at: float) -> None:
        """Nothing is in its cache any longer; ``exact``: the engine has said so."""
        self.cache.cleared(exact=exact)
        self.residue.clear()
        self.cold_since = at

    def idle_since(self, program: Program) -> float:
        """Since when nothing has used the context of an acting program on this backend."""
        since = self.charges[program].since
        assert since is not None
        return since

    def charge(self, program: Program, charge: Charge | None, at: float) -> None:
        """Let the program be charged for this and no longer for what it was before."""
        before = self.charges.get(program)
        if charge == before:
            return
        if before is not None:
            self._count(before, -1, at)
            del self.charges[program]
        if charge is not None:
            self.charges[program] = charge
            self._count(charge, 1, at)
        self._settle_residue(program, before, charge, at)

    def resize(self, operator: int | None, engine: int | None, at: float) -> bool:
        """Take new capacities; whether there is more room than before."""
        before = self.limit
        charges = list(self.charges.items())
        for program, _ in charges:
            self.charge(program, None, at)
        self.operator_capacity, self.engine_capacity = operator, engine
        for program, charge in charges:
            self.charge(program, charge, at)
        return self.limit > before

    def _settle_residue(
        self, program: Program, before: Charge | None, charge: Charge | None, at: float
    ) -> None:
        if charge is not None:
            self.residue.take(program)
        elif before is not None and self.healthy and self.limit < inf:
            since = at if before.since is None else before.since
            self.residue.leave(program, min(before.tokens, self.limit), since, self.limit)

    def _count(self, charge: Charge, sign: int, at: float) -> None:
        amount = min(charge.tokens, self.limit)
        if charge.since is None:
            self.reasoning_tokens += sign * amount
        elif sign > 0:
            self.acting_tokens.add(amount, charge.since, at)
        else:
            self.acting_tokens.remove(amount, charge.since, at)
