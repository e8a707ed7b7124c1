"""The page of ``thunder simulate``: one file, no network, no script."""

from __future__ import annotations

import html
from collections.abc import Sequence

from thunder_server.cli.simulate_tables import opening
from thunder_server.look import cost_bars, css
from thunder_server.simulation.study import Result, Study

_COLOURS = (
    "var(--plain)",
    "var(--engine-0)",
    "var(--engine-1)",
    "var(--engine-2)",
    "var(--engine-3)",
    "var(--waiting)",
    "var(--again)",
    "var(--dim)",
)
_HEAD = (
    "policy",
    "makespan s",
    "steps/min",
    "hit rate",
    "prefilled again",
    "wait p99 s",
    "first token p99 s",
    "slowdown p99",
    "pauses",
    "moves",
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1080, 260, 52, 22


def page(study: Study, results: Sequence[Result]) -> str:
    """The whole page as HTML."""
    names = [html.escape(result.row["policy"]) for result in results]
    keys = "".join(
        f'<span><b style="background:{_colour(n)}"></b>{name}</span>' for n, name in enumerate(names)
    )
    notes = "".join(f'<p class="lead">{html.escape(note)}</p>' for note in study.workload.notes)
    costs = cost_bars([(result.row["policy"], result.row["cost_token_s"]) for result in results])
    fastest = min(results, key=lambda result: result.row["makespan_s"]).row
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>thunder simulate: {html.escape(study.workload.name)}</title>
<style>
{css()}
</style>
</head>
<body>
<main>
<header><div>
<div class="brand">thunder simulate</div>
<h1><em>{html.escape(fastest["policy"])}</em> is through first, after {fastest["makespan_s"]:,.0f} s</h1>
<p class="lead">{html.escape(opening(study))}</p>
{notes}
</div></header>
<section>
<div class="card wide"><div class="head"><h3>Steps done</h3><small>over virtual time</small></div>
{_curves([_steps(result) for result in results], "s")}
<div class="keys">{keys}</div></div>
<div class="card wide"><div class="head"><h3>Until the first token</h3>
<small>seconds, for each share of the calls</small></div>
{_curves([_shares(result) for result in results], "%")}
<div class="keys">{keys}</div></div>
<div class="card wide">{costs}</div>
<div class="card wide"><table>{_table(results)}</table></div>
</section>
</main>
</body>
</html>
"""


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


Points = list[tuple[float, float]]


def _steps(result: Result) -> Points:
    answered = sorted(call.answered for call in result.outcome.served)
    return [(0.0, 0.0), *((at, float(n)) for n, at in enumerate(answered, 1))]


def _shares(result: Result) -> Points:
    waits = sorted(call.first_token_s for call in result.outcome.served)
    return [(100.0 * n / len(waits), wait) for n, wait in enumerate(waits, 1)]


def _curves(curves: Sequence[Points], unit: str) -> str:
    """One line each on common axes."""
    right = max((x for points in curves for x, _ in points), default=0.0) or 1.0
    top = max((y for points in curves for _, y in points), default=0.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / right * (_WIDTH - _LEFT - 30), (1 - y / top) * _HEIGHT

    grid = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(share * right, share * top)
        grid.append(
            f'<line class="gridline" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}"/>'
            f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="middle">{share * right:,.0f} {unit}</text>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * top:,.0f}</text>'
        )
    lines = []
    for number, points in enumerate(curves):
        thinned = points[:: max(1, len(points) // 600)] + points[-1:]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in thinned)
        lines.append(f'<polyline class="curve" style="stroke:{_colour(number)}" points="{path}"/>')
    return f'<svg viewBox="0 -8 {_WIDTH} {_HEIGHT + _BOTTOM + 8}">{"".join(grid)}{"".join(lines)}</svg>'


def _table(results: Sequence[Result]) -> str:
    head_cells = "".join(f"<th>{name}</th>" for name in _HEAD)
    lines = [f"<tr>{head_cells}</tr>"]
    for result in results:
        row, more = result.row, result.details
        cells = (
            html.escape(row["policy"]),
            f"{row['makespan_s']:,.0f}",
            f"{row['steps_per_min']:,.1f}",
            "" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}",
            f"{row['recomputed_tokens']:,}",
            f"{row['wait_s']['p99']:,.1f}",
            f"{more['first_token_s']['p99']:,.1f}",
            f"{more['slowdown']['p99']:,.1f}",
            f"{row['pauses']:,}",
            f"{row['moves']:,}",
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "".join(lines)
