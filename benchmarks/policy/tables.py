"""What the benchmark shows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from rich import box
from rich.table import Table

from benchmarks.policy.targets import Rows, Verdict, ratios, spread
from benchmarks.policy.work import Row


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def figures(rows: Rows, against: str = "passthrough") -> Table:
    """One line a policy: means over the seeds."""
    table = _table(
        "",
        "policy",
        "seconds",
        f"× {against}",
        "hit %",
        "wait p50",
        "p99, by seed",
        "pauses",
        "moves",
        "slowest",
    )
    for name, of_seeds in rows.items():
        table.add_row(
            name,
            f"{_mean(of_seeds, 'makespan_s'):,.0f}",
            spread(ratios(rows, name, against)),
            f"{100 * _mean(of_seeds, 'hit_rate'):.1f}",
            f"{mean(row['wait_s']['p50'] for row in of_seeds):.1f}",
            " ".join(f"{row['wait_s']['p99']:.0f}" for row in of_seeds),
            f"{_mean(of_seeds, 'pauses'):.0f}",
            f"{_mean(of_seeds, 'moves'):.0f}",
            f"{max(row['details']['slowdown']['max'] for row in of_seeds):.0f}×",
        )
    return table


def costs(rows: Rows) -> Table:
    """Shares of the engines' memory; what is missing to 100 % lay idle, and nobody wanted it."""
    kinds = list(next(iter(rows.values()))[0]["cost_token_s"])
    table = _table("Where the memory went, % of capacity × makespan", "policy", *kinds)
    for name, of_seeds in rows.items():
        table.add_row(name, *(f"{mean(_share(row, kind) for row in of_seeds):.1f}" for kind in kinds))
    return table


def judgement(policy: str, verdicts: Sequence[Verdict]) -> Table:
    table = _table(f"{policy}: is to be …", "", "measured", "")
    for verdict in verdicts:
        table.add_row(verdict.target, verdict.measured, "yes" if verdict.holds else "NO")
    return table


def _mean(rows: Sequence[Row], name: str) -> float:
    return mean(row[name] for row in rows)


def _share(row: Row, kind: str) -> float:
    return 100 * float(row["cost_token_s"][kind]) / (row["kv_tokens"] * row["replicas"] * row["makespan_s"])
