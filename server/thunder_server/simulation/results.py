"""What a run came to, and the row of figures that every benchmark of this project has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from thunder_server.core.pace import Forecast
from thunder_server.simulation.costs import Cost

QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One call that was answered, in seconds and tokens."""

    program_id: str
    answered: float  # seconds since the run began
    wait_s: float  # held by the scheduler
    first_token_s: float  # since it arrived
    total_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    known_tokens: int  # that an endless cache would have had of this program

    @property
    def recomputed_tokens(self) -> int:
        return max(0, self.known_tokens - self.cached_tokens)


@dataclass(slots=True, kw_only=True)
class ProgramRun:
    """One program; ``alone_s`` is what it would have taken on an engine of its own."""

    started: float
    ended: float = math.inf
    alone_s: float = 0.0
    pauses: int = 0

    @property
    def slowdown(self) -> float:
        return (self.ended - self.started) / max(self.alone_s, 1e-9)


class Contexts:
    """The contexts of all unfinished programs, over time.

    >>> contexts = Contexts()
    >>> contexts.put("p", 100, 0.0)
    >>> contexts.put("p", 0, 10.0)
    >>> contexts.area
    1000.0
    """

    def __init__(self) -> None:
        self.area = 0.0  # token-seconds
        self._tokens: dict[str, int] = {}
        self._sum = 0
        self._since = 0.0

    def settle(self, now: float) -> None:
        self.area += self._sum * (now - self._since)
        self._since = now

    def put(self, program_id: str, tokens: int, now: float) -> None:
        self.settle(now)
        self._sum += tokens - self._tokens.get(program_id, 0)
        self._tokens[program_id] = tokens


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Everything that a simulated run has shown; ``kv_tokens`` is the memory of all engines."""

    kv_tokens: int
    makespan_s: float = 0.0
    served: list[Served] = field(default_factory=list)
    programs: dict[str, ProgramRun] = field(default_factory=dict)
    contexts: Contexts = field(default_factory=Contexts)
    costs: list[Cost] = field(default_factory=list)  # by replica
    forecasts: list[Forecast] = field(default_factory=list)  # of what is cached, by replica
    failed_calls: int = 0
    restores: int = 0
    moves: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # because engines preempted; calls have what eviction cost

    @property
    def pauses(self) -> int:
        return sum(program.pauses for program in self.programs.values())


def row(
    *,
    policy: str,
    signals: str,
    workload: str,
    seed: int,
    programs: int,
    replicas: int,
    kv_tokens: int,
    working_set: float,
    makespan_s: float,
    calls: int,
    output_tokens: int,
    hit_rate: float | None,
    recomputed_tokens: int | None,
    waits: Iterable[float],
    pauses: int,
    restores: int,
    moves: int,
    cost: Cost | None,
) -> dict[str, Any]:
    """One run as demo, simulator and benchmarks report it. ``kv_tokens`` is per replica, ``working_set`` a
    share of all replicas' memory; ``None`` where an engine does not say."""
    seconds = max(makespan_s, 1e-9)
    return {
        "policy": policy,
        "signals": signals,
        "workload": workload,
        "seed": seed,
        "programs": programs,
        "replicas": replicas,
        "kv_tokens": kv_tokens,
        "working_set": round(working_set, 3),
        "makespan_s": round(makespan_s, 3),
        "steps_per_min": round(60 * calls / seconds, 1),
        "output_tokens_per_s": round(output_tokens / seconds, 1),
        "hit_rate": None if hit_rate is None else round(hit_rate, 4),
        "recomputed_tokens": recomputed_tokens,
        "wait_s": quantiles(waits),
        "pauses": pauses,
        "restores": restores,
        "moves": moves,
        "cost_token_s": None if cost is None else cost.rounded(),
    }


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest.

    >>> quantiles([3.0, 1.0, 2.0])
    {'p50': 2.0, 'p95': 3.0, 'p99': 3.0, 'max': 3.0}
    """
    ordered = sorted(values)
    return {name: round(percentile(ordered, share), 3) for name, share in QUANTILES}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of nothing.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def total(costs: Iterable[Cost]) -> Cost:
    """The sum over replicas."""
    every = list(costs)
    return Cost(**{one.name: sum(getattr(cost, one.name) for cost in every) for one in fields(Cost)})


def outcome_row(outcome: Outcome, setting: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a simulated run; ``setting`` are policy, signals, workload, seed, programs, replicas
    and kv_tokens."""
    served = outcome.served
    prompts = sum(call.prompt_tokens for call in served)
    return row(
        **setting,
        working_set=outcome.contexts.area / max(outcome.makespan_s, 1e-9) / outcome.kv_tokens,
        makespan_s=outcome.makespan_s,
        calls=len(served),
        output_tokens=sum(call.output_tokens for call in served),
        hit_rate=sum(call.cached_tokens for call in served) / prompts if prompts else None,
        recomputed_tokens=outcome.recomputed_tokens + sum(call.recomputed_tokens for call in served),
        waits=[call.wait_s for call in served],
        pauses=outcome.pauses,
        restores=outcome.restores,
        moves=outcome.moves,
        cost=total(outcome.costs),
    )


def details(outcome: Outcome) -> dict[str, Any]:
    """What only a simulator can tell of a run."""
    pauses = [program.pauses for program in outcome.programs.values()]
    return {
        "first_token_s": quantiles(call.first_token_s for call in outcome.served),
        "call_s": quantiles(call.total_s for call in outcome.served),
        "slowdown": quantiles(program.slowdown for program in outcome.programs.values()),
        "evictions_per_program": {
            "mean": round(sum(pauses) / max(1, len(pauses)), 3),
            "max": max(pauses, default=0),
        },
        "programs": len(outcome.programs),  # sub-agents among them
        "calls": len(outcome.served),
        "failed_calls": outcome.failed_calls,
        "preemptions": outcome.preemptions,
        "prefix_tokens": {
            "predicted": sum(forecast.predicted for forecast in outcome.forecasts),
            "cached": sum(forecast.cached for forecast in outcome.forecasts),
            "mispredicted": sum(forecast.off for forecast in outcome.forecasts),
        },
    }
