"""``cap`` at its best N: what somebody gets who tries all numbers for exactly this work."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.policy.work import Job, Load, Row, run_all
from thunder_server.core import CapSettings, make_policy

FIRST = 20
"""Programs on each engine to begin with."""


def best_cap(load: Load, seeds: Sequence[int], processes: int) -> list[Row]:
    """The rows of the N with the least makespan on the first seed, found by going downhill, first in steps of
    4, then 2, then 1. What all live programs need is the most that makes a difference."""
    tried: dict[int, float] = {}
    most = load.live

    def jobs(programs: int, among: Sequence[int]) -> list[Job]:
        policy = make_policy("cap", CapSettings(programs=programs))
        return [Job(load, seed, f"cap:{programs}", policy) for seed in among]

    def look(*several: int) -> None:
        new = [programs for programs in several if programs not in tried]
        rows = run_all([job for programs in new for job in jobs(programs, seeds[:1])], processes)
        tried.update(zip(new, (row["makespan_s"] for row in rows), strict=True))

    best = min(FIRST, most)
    for step in (4, 2, 1):
        while True:
            around = (max(1, best - step), best, min(most, best + step))
            look(*dict.fromkeys(around))
            better = min(around, key=tried.__getitem__)
            if better == best:
                break
            best = better
    return list(run_all(jobs(best, seeds), processes))
