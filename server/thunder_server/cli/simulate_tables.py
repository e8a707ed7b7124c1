"""What ``thunder simulate`` shows in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from thunder_server.cli.tables import seconds, tokens
from thunder_server.simulation.study import Result, Study


def opening(study: Study) -> str:
    """What is simulated, in one sentence."""
    machines = study.machines
    return (
        f"{len(study.workload.starts)} programs ({study.workload.name}, seed {study.seed}) on "
        f"{machines.replicas} × {machines.preset.about} with {machines.kv_tokens:,} KV tokens each, "
        f"signals {study.signals.value}"
    )


def _table(headings: Sequence[str]) -> Table:
    table = Table(title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def figures(results: Sequence[Result]) -> Table:
    """One line a policy; the factor is against the first."""
    first = results[0].row["makespan_s"]
    headings = ["seconds", "×", "steps/min", "hit %", "again", "wait p50", "p99", "pauses", "moves", "set"]
    table = _table(headings)
    for result in results:
        row = result.row
        table.add_row(
            row["policy"],
            f"{row['makespan_s']:,.0f}",
            f"{first / max(row['makespan_s'], 1e-9):.2f}",
            f"{row['steps_per_min']:,.1f}",
            "" if row["hit_rate"] is None else f"{100 * row['hit_rate']:.1f}",
            tokens(row["recomputed_tokens"]),
            seconds(row["wait_s"]["p50"]),
            seconds(row["wait_s"]["p99"]),
            f"{row['pauses']:,}",
            f"{row['moves']:,}",
            f"{row['working_set']:.2f}",
        )
    return table


def costs(results: Sequence[Result]) -> Table:
    """Shares of the engines' memory over the whole run; what is missing to 100 % lay idle, and nobody
    wanted it."""
    kinds = list(results[0].row["cost_token_s"])
    table = _table(kinds)
    table.title = "Where the memory went, % of capacity × makespan"
    for result in results:
        row = result.row
        whole = row["kv_tokens"] * row["replicas"] * row["makespan_s"]
        shares = (100 * row["cost_token_s"][kind] / max(whole, 1e-9) for kind in kinds)
        table.add_row(row["policy"], *(f"{share:.1f}" for share in shares))
    return table
