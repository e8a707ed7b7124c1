"""The page at the end: everything that was seen, in one file that needs no network.

The template and its script are beside this module in ``page/``; its style is the ``look`` of all our pages.
Figures are written as HTML, so that they can be read without JavaScript; the script draws the timelines from
the JSON inside the page.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any

from thunder_server.demo import costs
from thunder_server.demo.costs import Pace
from thunder_server.demo.measures import Result
from thunder_server.demo.records import Called
from thunder_server.demo.run import Emulated
from thunder_server.demo.story import Outline, Pair
from thunder_server.demo.table import figures, verdict
from thunder_server.demo.timeline import Activity, Lane, Segment, recomputed_tokens
from thunder_server.look import cost_bars, css


def page(story: Outline, pairs: Sequence[Pair], notes: Sequence[str]) -> str:
    """The whole page as HTML."""
    first = pairs[0]
    agents = len(first.baseline.run.task.scripts)
    kind = "emulated engines" if isinstance(story.engines, Emulated) else "engines"
    parts = {
        "title": html.escape(f"{first.speedup:.2f} × as fast"),
        "headline": f"<em>{first.speedup:.2f} ×</em> as fast, the same work",
        "lead": html.escape(
            f"{agents} recorded coding agents on {story.engines.replicas} {kind}: first served one request "
            "at a time, as a load balancer does it, then scheduled as whole programs."
        ),
        "chapters": "\n".join(_chapter(pair, number) for number, pair in enumerate(pairs)),
        "notes": "\n".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "css": css(),
        "js": _asset("report.js"),
        # "</" would end the script element that holds it.
        "data": json.dumps([_pair_data(pair) for pair in pairs], separators=(",", ":")).replace("</", "<\\/"),
    }
    written = _asset("report.html")
    for name, text in parts.items():
        written = written.replace("{{" + name + "}}", text)
    return written


def _asset(name: str) -> str:
    return (files("thunder_server.demo") / "page" / name).read_text(encoding="utf-8")


# --- what is written as HTML ---------------------------------------------------------------------------


def _chapter(pair: Pair, number: int) -> str:
    runs = (pair.baseline, pair.scheduled)
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{without}</td><td>{scheduled}</td></tr>"
        for name, without, scheduled in figures(pair)
    )
    names = [html.escape(run.run.task.policy) for run in runs]
    lanes = "".join(_run(result, number, index) for index, result in enumerate(runs))
    return f"""<section>
<h2>{html.escape(pair.title)}</h2>
<p class="verdict">{html.escape(verdict(pair))}</p>
<div class="tiles">{"".join(_tile(*tile) for tile in _tiles(pair))}</div>
<div class="pair">
<div class="card"><div class="head"><h3>Steps done</h3><small>over time</small></div>
<div data-draw="steps {number}"></div>
<div class="keys"><span><b style="background:var(--plain)"></b>{names[0]}</span>
<span><b style="background:var(--accent)"></b>{names[1]}</span></div>
{cost_bars([(run.run.task.policy, run.row["cost_token_s"]) for run in runs])}</div>
<div class="card"><table><tr><th></th><th>{names[0]}</th><th>{names[1]}</th></tr>{rows}</table></div>
</div>
{lanes}
</section>"""


def _tiles(pair: Pair) -> list[tuple[str, float | None, float | None, str]]:
    without, scheduled = pair.baseline.row, pair.scheduled.row
    return [
        (name, without[key], scheduled[key], how)
        for name, key, how in (
            ("makespan", "makespan_s", "{:.1f} s"),
            ("steps per minute", "steps_per_min", "{:,.0f}"),
            ("prompt tokens found in cache", "hit_rate", "{:.0%}"),
            ("tokens prefilled again", "recomputed_tokens", "{:,}"),
        )
    ]


def _tile(name: str, without: float | None, scheduled: float | None, how: str) -> str:
    most = max(without or 0, scheduled or 0) or 1
    bars = "".join(
        f'<div class="bar {kind}"><i style="width:{100 * (value or 0) / most:.1f}%"></i>'
        f"<span>{'unknown' if value is None else how.format(value)}</span></div>"
        for kind, value in (("", without), ("scheduled", scheduled))
    )
    return f'<div class="card tile"><div class="name">{name}</div>{bars}</div>'


def _run(result: Result, pair: int, index: int) -> str:
    engines = "".join(
        f'<span><b style="background:var(--engine-{number % 4})"></b>calling, engine {number + 1}</span>'
        for number in range(len(result.run.backends))
    )
    return f"""<div class="card wide">
<div class="head"><h3>{html.escape(result.run.task.policy)}</h3>
<small>memory that the programs want on each engine; dashed: what it has</small></div>
<div data-draw="memory {pair} {index}"></div>
<div class="head programs"><h3>Programs</h3><small>one lane each; the pointer tells more</small></div>
<div data-draw="lanes {pair} {index}"></div>
<div class="keys">{engines}
<span><b style="background:var(--again)"></b>of which prefilling again (estimate)</span>
<span><b style="background:var(--acting)"></b>acting</span>
<span><b style="background:var(--waiting)"></b>call held back</span>
<span><b class="thin" style="background:var(--waiting)"></b>paused, its memory given up</span></div>
</div>"""


# --- what the script draws -----------------------------------------------------------------------------


def _pair_data(pair: Pair) -> dict[str, Any]:
    runs = [_run_data(pair.baseline), _run_data(pair.scheduled)]
    most = max(run["most"] for run in runs)
    return {"until": max(run["makespan"] for run in runs), "runs": [run | {"most": most} for run in runs]}


def _run_data(result: Result) -> dict[str, Any]:
    run = result.run
    calls = run.of(Called)
    pace = costs.fit_pace(calls) if calls else Pace(0.0, 0.0)
    block_size = run.task.engines.block_size
    memory = [memory_wanted(result.lanes, backend) for backend in range(len(run.backends))]
    capacities = run.task.engines.capacities
    return {
        "makespan": result.makespan_s,
        "steps": sorted(round(call.answered - run.started, 3) for call in calls),
        "capacities": capacities,
        "most": max([max(capacities) * 1.1, *(r + a for series in memory for _, r, a in series)]),
        "memory": memory,
        "lanes": [
            {
                "name": lane.name,
                "child": lane.parent is not None,
                "segments": [_segment(segment, pace, block_size) for segment in lane.segments],
                "paused": [(round(start, 3), round(end, 3)) for start, end in lane.paused],
            }
            for lane in _families(result)
        ],
    }


def _families(result: Result) -> list[Lane]:
    """Lanes in the order of the scripts, the same in every run; sub-agents below their parents."""
    rank = {script.name: number for number, script in enumerate(result.run.task.scripts)}
    children: dict[str | None, list[Lane]] = {}
    for lane in result.lanes:
        children.setdefault(lane.parent, []).append(lane)
    ordered: list[Lane] = []
    left = sorted(children.get(None, []), key=lambda lane: -rank.get(lane.name, 0))
    while left:
        lane = left.pop()
        ordered.append(lane)
        left += reversed(children.get(lane.program, []))
    return ordered


def _segment(segment: Segment, pace: Pace, block_size: int) -> tuple[object, ...]:
    """``[from, to, kind, engine, context, share of the time spent prefilling again, words]``."""
    again, words = 0.0, f"acting: {segment.tool}"
    call = segment.call
    if call is not None and segment.activity is Activity.WAITING:
        words = "call held back by the scheduler"
    elif call is not None:
        lost = recomputed_tokens(call, block_size)
        spent = (call.prompt_tokens - (call.cached_tokens or 0)) * pace.prefill
        total = spent + call.completion_tokens * pace.decode
        again = lost * pace.prefill / total if total else 0.0
        words = f"call at engine {segment.backend + 1}" if segment.backend is not None else "call"
        words += f": {call.prompt_tokens:,} tokens in, {call.completion_tokens:,} out"
        if call.cached_tokens is not None:
            words += f"\n{call.cached_tokens:,} from cache, {lost:,} prefilled again"
    return (
        round(segment.start, 3),
        round(segment.end, 3),
        segment.activity.value,
        segment.backend,
        segment.tokens,
        round(min(1.0, again), 3),
        words,
    )


def memory_wanted(lanes: Sequence[Lane], backend: int) -> list[tuple[float, int, int]]:
    """``(time, tokens of running calls, tokens kept for acting programs)`` from each time on, one backend.

    A program that acts wants its context kept where it was last, unless it is paused.
    """
    changes: dict[float, list[int]] = {}

    def add(start: float, end: float, tokens: int, which: int) -> None:
        if end > start:
            changes.setdefault(round(start, 3), [0, 0])[which] += tokens
            changes.setdefault(round(end, 3), [0, 0])[which] -= tokens

    for lane in lanes:
        for segment in lane.segments:
            if segment.backend != backend:
                continue
            if segment.activity is Activity.REASONING:
                add(segment.start, segment.end, segment.tokens, 0)
            else:
                for start, end in costs.held(segment, lane):
                    add(start, end, segment.tokens, 1)
    series, now = [(0.0, 0, 0)], [0, 0]
    for at, (reasoning, acting) in sorted(changes.items()):
        now = [now[0] + reasoning, now[1] + acting]
        series.append((at, now[0], now[1]))
    return [
        point for point, following in pairwise([*series, (float("inf"), 0, 0)]) if following[0] > point[0]
    ]
