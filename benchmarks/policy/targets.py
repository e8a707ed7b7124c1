"""What ``phase`` is to reach, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.policy.work import Row

Rows = Mapping[str, Sequence[Row]]
"""By policy: a row a seed, in the order of the seeds."""

PHASE, WARM, ORACLE, PAPER, CAP = "phase", "phase, keeping warm", "oracle", "paper", "cap (best)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured."""

    target: str
    measured: str
    holds: bool


AT_LEAST: Mapping[float, Mapping[str, float]] = {
    0.5: {"passthrough": 0.99, CAP: 0.99, PAPER: 0.99},
    1.5: {"passthrough": 1.5, CAP: 1.05, PAPER: 1.1},
    2.5: {"passthrough": 1.8, CAP: 1.1, PAPER: 1.2},
}
"""By working set: how many times as fast as another policy."""
OF_ORACLE = 0.9


def ratios(rows: Rows, policy: str, against: str) -> list[float]:
    """How many times as fast, by seed."""
    pairs = zip(rows[policy], rows[against], strict=True)
    return [other["makespan_s"] / mine["makespan_s"] for mine, other in pairs]


def spread(values: Sequence[float]) -> str:
    """Mean, least and most: ``1.52 (1.48-1.55)``."""
    return f"{mean(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def verdicts(working_set: float, rows: Rows, policy: str = PHASE) -> Iterator[Verdict]:
    """Every target of one working set, and whether this policy reaches it. Ratios are means over the seeds,
    waits hold on each of them."""
    for other, least in AT_LEAST[working_set].items():
        values = ratios(rows, policy, other)
        yield Verdict(f"at least {least:.2f}× {other}", spread(values), mean(values) >= least)
    if ORACLE in rows:
        values = ratios(rows, policy, ORACLE)
        yield Verdict("within 10 % of the oracle", spread(values), mean(values) >= OF_ORACLE)
    if working_set < 1:
        pauses = [row["pauses"] for row in rows[policy]]
        yield Verdict("no pauses at all", " ".join(map(str, pauses)), not any(pauses))
        return
    waits = [(mine["wait_s"]["p99"], other["wait_s"]["p99"]) for mine, other in _pairs(rows, policy)]
    yield Verdict(
        "p99 wait no longer than paper's, on every seed",
        ", ".join(f"{mine:.0f} / {other:.0f} s" for mine, other in waits),
        all(mine <= other for mine, other in waits),
    )
    slowest = [
        (mine["details"]["slowdown"]["max"], other["details"]["slowdown"]["max"])
        for mine, other in _pairs(rows, policy)
    ]
    yield Verdict(
        "nobody starves: slowest program no slower than paper's, on every seed",
        ", ".join(f"{mine:.0f}× / {other:.0f}×" for mine, other in slowest),
        all(mine <= other for mine, other in slowest),
    )


def _pairs(rows: Rows, policy: str) -> list[tuple[Row, Row]]:
    return list(zip(rows[policy], rows[PAPER], strict=True))
