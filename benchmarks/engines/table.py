"""Rows to a table: one line a target, means over seeds with their spread, ratios against the first target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

Row = dict[str, Any]
_HEADINGS = (
    "target",
    "signals",
    "makespan, s",
    "mean",
    "as fast",
    "hit rate",
    "computed",
    "call p99, s",
    "pauses",
    "moves",
    "at best, s",
)


def markdown(rows: Sequence[Row], details: Sequence[Row]) -> str:
    """The table of a run.

    ``hit rate`` is that of the agents' calls, ``computed`` all prompt tokens that the engines computed.
    ``as fast`` is the mean over seeds of the first target's makespan ÷ this one's, with the smallest and the
    largest. ``at best`` is the makespan that memory alone would have allowed: had nothing been recomputed and
    nothing lain unused, with contexts kept while tools ran.
    """
    targets = list(dict.fromkeys((row["policy"], row["signals"]) for row in rows))
    base = {row["seed"]: row["makespan_s"] for row in rows if row["policy"] == targets[0][0]}
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|---|" + "--:|" * (len(_HEADINGS) - 2)]
    for name, signals in targets:
        mine = [row for row in rows if row["policy"] == name]
        ratios = [base[row["seed"]] / max(row["makespan_s"], 1e-9) for row in mine if row["seed"] in base]
        calls = [detail["call_s"]["p99"] for detail in details if detail["policy"] == name]
        computed = [detail["computed_tokens"] for detail in details if detail["policy"] == name]
        lines.append(
            "| "
            + " | ".join(
                (
                    name,
                    signals,
                    " ".join(f"{row['makespan_s']:.0f}" for row in mine),
                    f"{mean(row['makespan_s'] for row in mine):.0f}",
                    spread(ratios, "{:.2f}"),
                    spread([row["hit_rate"] for row in mine], "{:.1%}"),
                    f"{mean(computed) / 1000:.0f}k" if None not in computed else "",
                    spread(calls, "{:.1f}"),
                    " ".join(str(row["pauses"]) for row in mine),
                    " ".join(str(row["moves"]) for row in mine),
                    spread(map(residency_s, mine), "{:.0f}"),
                )
            )
            + " |"
        )
    return "\n".join(lines)


def forecasts(details: Sequence[Row]) -> str:
    """How well each thunder server knew what engines had cached; nothing if there was none."""
    lines = [
        "| target | seed | calls | predicted to the token | cached tokens | predicted | off, call by call |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {detail['policy']} | {detail['seed']} | {known['calls']} | {known['exact']} "
        f"| {known['cached']:,} | {known['predicted']:,} | {known['mispredicted']:,} |"
        for detail in details
        if (known := detail["forecast"]) is not None
    ]
    return "\n".join(lines) if len(lines) > 2 else ""


def residency_s(row: Row) -> float | None:
    """What decoding, prefilling what is new and holding contexts for tools take of all memory, in seconds.

    >>> cost = {"decode": 300, "prefill": 100, "caching": 400, "recompute": 999, "unused": 999}
    >>> residency_s({"cost_token_s": cost, "kv_tokens": 10, "replicas": 2})
    40.0
    """
    cost = row["cost_token_s"]
    if cost is None:
        return None
    useful: float = cost["decode"] + cost["prefill"] + cost["caching"]
    capacity: int = row["kv_tokens"] * row["replicas"]
    return useful / capacity if useful else None  # nothing: it is not known which engine answered


def spread(values: Iterable[float | None], form: str) -> str:
    """The mean, and smallest and largest where there are several.

    >>> spread([1.0, 2.0], "{:.1f}"), spread([1.0], "{:.1f}"), spread([None], "{:.1f}")
    ('1.5 (1.0 to 2.0)', '1.0', '')
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    write: Callable[[float], str] = form.format
    if len(known) == 1:
        return write(known[0])
    return f"{write(mean(known))} ({write(min(known))} to {write(max(known))})"


def against_simulation(rows: Sequence[Row], simulated: Sequence[Row]) -> str:
    """What the simulator says of the same work: makespans, hit rates, and by how much they are off."""
    lines = [
        "| target | seed | makespan, s | simulated | off by | hit rate | simulated | off by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    real = {(row["policy"], row["seed"]): row for row in rows}
    for row in simulated:
        measured = real[row["policy"], row["seed"]]
        time, hit = measured["makespan_s"], measured["hit_rate"] or 0.0
        lines.append(
            f"| {row['policy']} | {row['seed']} | {time:.1f} | {row['makespan_s']:.1f} "
            f"| {row['makespan_s'] / time - 1:+.1%} | {hit:.1%} | {row['hit_rate']:.1%} "
            f"| {100 * (row['hit_rate'] - hit):+.1f} points |"
        )
    return "\n".join(lines)
