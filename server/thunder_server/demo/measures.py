"""A run in figures: one row of the table, of the JSON and of the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from thunder_server.demo import costs
from thunder_server.demo.records import Called, Closed, Opened
from thunder_server.demo.run import Run
from thunder_server.demo.timeline import Lane, draw, recomputed_tokens
from thunder_server.simulation.results import row

SEED = 0  # sessions, texts and their order are the same in every demo


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run, measured. ``row`` has the fields that all our benchmarks share; ``lanes`` are for drawing."""

    run: Run
    row: dict[str, Any]
    lanes: list[Lane]

    @property
    def makespan_s(self) -> float:
        makespan: float = self.row["makespan_s"]
        return makespan


def measure(run: Run) -> Result:
    engines = run.task.engines
    calls = run.of(Called)
    makespan = max(run.ended - run.started, 1e-9)
    lanes = draw(run)
    kinds = Counter(transition["type"] for transition in run.transitions)
    # Who waits for a first place has no memory to give up.
    pauses = sum(
        transition["type"] == "program.paused" and transition["backend"] is not None
        for transition in run.transitions
    )
    moves = sum(
        1
        for transition in run.transitions
        if transition["type"] == "program.restored" and transition.get("moved")
    )
    cost = costs.measure(
        lanes,
        capacities=engines.capacities,
        block_size=engines.block_size,
        makespan=makespan,
    )
    figures = row(
        policy=run.task.policy,
        signals="explicit",
        workload=run.task.workload,
        seed=SEED,
        programs=len(lanes),
        replicas=engines.replicas,
        kv_tokens=engines.kv_tokens,
        working_set=working_set(run) / sum(engines.capacities),
        makespan_s=makespan,
        calls=len(calls),
        output_tokens=sum(call.completion_tokens for call in calls),
        hit_rate=hit_rate(run),
        recomputed_tokens=recomputed(run),
        waits=[call.wait_s for call in calls],
        pauses=pauses,
        restores=kinds["program.restored"],
        moves=moves,
        cost=cost,
    )
    return Result(run=run, row=figures, lanes=lanes)


def hit_rate(run: Run) -> float | None:
    """Share of prompt tokens found in the engines' caches: by their own count, else by what answers said."""
    if run.cache is not None and run.cache.queries:
        return round(run.cache.hits / run.cache.queries, 4)
    calls = run.of(Called)
    if not calls or any(call.cached_tokens is None for call in calls):
        return None
    return round(
        sum(call.cached_tokens or 0 for call in calls) / sum(call.prompt_tokens for call in calls), 4
    )


def recomputed(run: Run) -> int | None:
    """Prompt tokens computed again although they had been computed for the same program before.

    From each answer where it says what was cached; else from the engines' total, which is a lower bound.
    """
    calls = run.of(Called)
    block_size = run.task.engines.block_size
    if all(call.cached_tokens is not None for call in calls):
        return sum(recomputed_tokens(call, block_size) for call in calls)
    if run.cache is None:
        return None
    keepable = sum(call.reusable_tokens // block_size * block_size for call in calls)
    return max(0, round(keepable - run.cache.hits))


def working_set(run: Run) -> float:
    """Mean over time of the contexts of all unfinished programs, in tokens."""
    closed = {record.program: record.at for record in run.of(Closed)}
    contexts: dict[str, list[tuple[float, float]]] = {record.program: [] for record in run.of(Opened)}
    for call in run.of(Called):
        contexts[call.program] += (
            (call.sent, float(call.prompt_tokens)),
            (call.answered, float(call.prompt_tokens + call.completion_tokens)),
        )
    total = 0.0
    for program, points in contexts.items():
        ends = [at for at, _ in points[1:]] + [closed.get(program, run.ended)]
        total += (
            sum(tokens * max(0.0, end - at) for (at, tokens), end in zip(points, ends, strict=True))
            if points
            else 0.0
        )
    return total / max(run.ended - run.started, 1e-9)
