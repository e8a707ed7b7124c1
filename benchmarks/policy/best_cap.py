"""``cap`` at its best N: what somebody gets who tries all numbers for exactly this work."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from benchmarks.policy.work import Job, Load, Row, run_all
from thunder_server.core import CapSettings, make_policy

FIRST = 20
"""Programs on each engine to begin with."""


def best_cap(load: Load, seeds: Sequence[int], processes: int) -> list[Row]:
    """The rows of the N with the least mean makespan, found by going downhill, first in steps of 4, then 2,
    then 1. What all live programs need is the most that makes a difference."""
    tried: dict[int, list[Row]] = {}
    most = load.live

    def makespan(programs: int) -> float:
        if programs not in tried:
            jobs = [
                Job(load, seed, f"cap:{programs}", make_policy("cap", CapSettings(programs=programs)))
                for seed in seeds
            ]
            tried[programs] = list(run_all(jobs, processes))
        return mean(row["makespan_s"] for row in tried[programs])

    best = min(FIRST, most)
    for step in (4, 2, 1):
        while (better := min((max(1, best - step), best, min(most, best + step)), key=makespan)) != best:
            best = better
    return tried[best]
