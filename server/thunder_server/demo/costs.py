"""Where the engines' memory went, by what agents and the server have seen (see `simulation.costs.Cost`).

An engine does not say when a call's prefill ended. How long prefilling a token and generating one took is
fitted over all calls of the run (least squares), and each call's time is divided in that proportion. Where
calls together want more than an engine has, they share what it has; contexts that wait for a tool get what
they leave. So the five together never exceed capacity × time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from thunder_server.demo.records import Called
from thunder_server.demo.timeline import Activity, Lane, Segment, recomputed_tokens
from thunder_server.simulation.costs import Cost


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per token, prefilled and generated."""

    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class _Hold:
    """Tokens on a backend for a time; ``shares`` divides them among decode, prefill and recompute."""

    start: float
    end: float
    tokens: float
    shares: tuple[float, float, float] | None = None  # None: held while a tool runs


def measure(
    lanes: Sequence[Lane], *, capacities: Sequence[int], block_size: int, makespan: float
) -> Cost | None:
    """The cost of a run; ``None`` where the engines do not say what they found in their caches."""
    calls = [segment.call for lane in lanes for segment in lane.segments if segment.call is not None]
    if not calls or any(call.cached_tokens is None for call in calls):
        return None
    pace = fit_pace(calls)
    holds: list[list[_Hold]] = [[] for _ in capacities]
    queued: list[tuple[float, float]] = []
    for lane in lanes:
        for segment in lane.segments:
            if segment.activity is Activity.WAITING:
                queued.append((segment.start, segment.end))
            elif segment.backend is not None:
                holds[segment.backend] += _holds(segment, lane, pace, block_size)
    cost = Cost()
    edges = sorted(
        {0.0, makespan}
        | {edge for held in holds for hold in held for edge in (hold.start, hold.end)}
        | {edge for wait in queued for edge in wait}
    )
    for start, end in pairwise(edges):
        middle = (start + end) / 2
        somebody_waits = any(a <= middle < b for a, b in queued)
        _spend(cost, holds, capacities, middle, end - start, somebody_waits=somebody_waits)
    return cost


def fit_pace(calls: Sequence[Called]) -> Pace:
    """Least squares of call times over tokens prefilled and generated, neither below zero."""
    rows = [
        (
            float(call.prompt_tokens - (call.cached_tokens or 0)),
            float(call.completion_tokens),
            call.answered - call.dispatched,
        )
        for call in calls
    ]
    uu, uv, vv = (
        sum(u * u for u, _, _ in rows),
        sum(u * v for u, v, _ in rows),
        sum(v * v for _, v, _ in rows),
    )
    ud, vd = sum(u * d for u, _, d in rows), sum(v * d for _, v, d in rows)
    determinant = uu * vv - uv * uv
    if determinant > 1e-9 * uu * vv:
        prefill, decode = (ud * vv - vd * uv) / determinant, (vd * uu - ud * uv) / determinant
        if prefill >= 0 and decode >= 0:
            return Pace(prefill, decode)
    alone = Pace(ud / uu if uu else 0.0, 0.0), Pace(0.0, vd / vv if vv else 0.0)
    return min(alone, key=lambda pace: sum((d - pace.prefill * u - pace.decode * v) ** 2 for u, v, d in rows))


def held(segment: Segment, lane: Lane) -> list[tuple[float, float]]:
    """The parts of an acting segment in which the program is not paused: a paused one has given up its
    context."""
    parts, at = [], segment.start
    for start, end in sorted(lane.paused):
        if end > at and start < segment.end:
            parts.append((at, start))
            at = end
    parts.append((at, segment.end))
    return [(start, end) for start, end in parts if end > start]


def _holds(segment: Segment, lane: Lane, pace: Pace, block_size: int) -> list[_Hold]:
    if segment.activity is Activity.ACTING:
        return [_Hold(start, end, segment.tokens) for start, end in held(segment, lane)]
    call = segment.call
    assert call is not None
    computed = call.prompt_tokens - (call.cached_tokens or 0)
    again = min(computed, recomputed_tokens(call, block_size))
    parts = (
        call.completion_tokens * pace.decode,
        (computed - again) * pace.prefill,
        again * pace.prefill,
    )
    total = sum(parts) or 1.0
    shares = (parts[0] / total, parts[1] / total, parts[2] / total)
    return [_Hold(segment.start, segment.end, call.prompt_tokens + call.completion_tokens / 2, shares)]


def _spend(
    cost: Cost,
    holds: Sequence[Sequence[_Hold]],
    capacities: Sequence[int],
    at: float,
    seconds: float,
    *,
    somebody_waits: bool,
) -> None:
    present = [[hold for hold in held if hold.start <= at < hold.end] for held in holds]
    wanted = [sum(hold.tokens for hold in held if hold.shares is not None) for held in present]
    crowded = [want > capacity for want, capacity in zip(wanted, capacities, strict=True)]
    for number, (held, want, capacity) in enumerate(zip(present, wanted, capacities, strict=True)):
        scale = min(1.0, capacity / want) if want else 1.0
        for hold in held:
            if hold.shares is not None:
                spent = hold.tokens * scale * seconds
                cost.decode += spent * hold.shares[0]
                cost.prefill += spent * hold.shares[1]
                cost.recompute += spent * hold.shares[2]
        left = max(0.0, capacity - want)
        cached = min(left, sum(hold.tokens for hold in held if hold.shares is None))
        cost.caching += cached * seconds
        others_queue = any(full for other, full in enumerate(crowded) if other != number)
        if somebody_waits or others_queue:
            cost.unused += (left - cached) * seconds
