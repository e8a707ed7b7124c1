"""A pair of runs side by side, in figures and in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from thunder_server.demo.story import Pair

_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], object], str], ...] = (
    ("makespan", lambda row: row["makespan_s"], "{:,.1f} s"),
    ("steps/min", lambda row: row["steps_per_min"], "{:,.0f}"),
    ("output tokens/s", lambda row: row["output_tokens_per_s"], "{:,.0f}"),
    ("cache hit rate", lambda row: None if row["hit_rate"] is None else 100 * row["hit_rate"], "{:.1f} %"),
    ("tokens prefilled again", lambda row: row["recomputed_tokens"], "{:,}"),
    ("wait p50", lambda row: row["wait_s"]["p50"], "{:.2f} s"),
    ("wait p99", lambda row: row["wait_s"]["p99"], "{:.2f} s"),
    ("pauses", lambda row: row["pauses"], "{:,}"),
    ("working set ÷ KV cache", lambda row: row["working_set"], "{:.2f}"),
)


def figures(pair: Pair) -> list[tuple[str, str, str]]:
    """The rows of the table: what, without, with."""

    def say(value: object, how: str) -> str:
        return "unknown" if value is None else how.format(value)

    return [
        (name, say(read(pair.baseline.row), how), say(read(pair.scheduled.row), how))
        for name, read, how in _ROWS
    ]


def verdict(pair: Pair) -> str:
    """Whether scheduling paid, in one sentence."""
    factor = pair.speedup
    fits = (
        " All contexts fit, so that there is nothing to gain." if pair.baseline.row["working_set"] < 1 else ""
    )
    if factor >= 1.05:
        return f"{factor:.2f} × as fast with the scheduler.{fits}"
    if factor >= 0.95:
        return f"About as fast with the scheduler as without it ({factor:.2f} ×).{fits}"
    return f"Slower with the scheduler: {factor:.2f} × as fast as without it.{fits}"


def draw(pair: Pair) -> Table:
    table = Table(title=pair.title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column(pair.baseline.run.task.policy, justify="right")
    table.add_column(pair.scheduled.run.task.policy, justify="right", style="bold")
    for name, without, scheduled in figures(pair):
        table.add_row(name, without, scheduled)
    return table
