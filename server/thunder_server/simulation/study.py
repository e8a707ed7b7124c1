"""What is simulated: which programs on which engines; and one run of it under one policy."""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from thunder_server.core import Policy, SchedulerConfig
from thunder_server.simulation.generated import GENERATORS, LARGEST_CONTEXT, STAGGER_S
from thunder_server.simulation.reading import read
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.results import Outcome, details, outcome_row
from thunder_server.simulation.simulator import Machines, Simulator, Start
from thunder_server.simulation.traffic import Traffic
from thunder_server.simulation.workload import Session, recorded

RECORDED = "recorded"
RECORDED_TURNS = 16
RECORDED_GAP_S = 60.0
"""A recording lasts hours, most of which somebody sleeps: whole, its longest session alone would decide when
a run ends, whatever the policy."""
PROGRAMS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Programs to run, and what should be known about where they come from."""

    name: str
    starts: tuple[Start, ...]
    notes: tuple[str, ...] = ()

    def noting(self, note: str) -> Workload:
        return replace(self, notes=(*self.notes, note))

    def first_calls(self, most: int) -> Workload:
        """So many of the programs as have ``most`` calls together, and a note if those are not all."""
        calls = list(accumulate(start.session.calls for start in self.starts))
        kept = max(1, bisect(calls, most))
        if kept >= len(self.starts):
            return self
        note = f"replayed: the first {kept:,} programs, which have {calls[kept - 1]:,} of {calls[-1]:,} calls"
        return replace(self, starts=self.starts[:kept]).noting(note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How much of a session is replayed: ``turns`` consecutive ones from a random place, and gaps no longer
    than ``longest_gap_s``; ``None``: as it was."""

    turns: int | None = None
    longest_gap_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The same work for every policy."""

    workload: Workload
    machines: Machines
    signals: Signals
    seed: int
    at_a_time: int | None = None
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_events: bool = False

    def run(self, name: str, policy: Policy, *, shadow: bool = False) -> Result:
        """Simulate one policy, under the name that its row goes by; ``shadow``: without the router."""
        router = replace(self.config.router, shadow=shadow)
        outcome = Simulator(
            self.workload.starts,
            self.machines,
            policy=policy,
            signals=self.signals,
            at_a_time=self.at_a_time,
            config=replace(self.config, router=router),
            kv_events=self.kv_events,
        ).run()
        setting = {
            "policy": name,
            "signals": self.signals.value,
            "workload": self.workload.name,
            "seed": self.seed,
            "programs": len(self.workload.starts),
            "replicas": self.machines.replicas,
            "kv_tokens": self.machines.kv_tokens,
        }
        return Result(outcome=outcome, row=outcome_row(outcome, setting), details=details(outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run and its figures: the ``row`` that all our benchmarks share, and what only a simulator knows."""

    outcome: Outcome
    row: dict[str, Any]
    details: dict[str, Any]


def from_files(paths: Sequence[Path], programs: int | None, seed: int, cut: Cut) -> Workload:
    """Recorded traffic (`reading`), as it was unless ``cut`` says otherwise; see `from_traffic`.

    Raises:
        TraceError: a file cannot be used; the message names it, and the line.
    """
    return from_traffic(read(paths), "+".join(path.name for path in paths), programs, seed, cut)


def from_traffic(traffic: Traffic, name: str, programs: int | None, seed: int, cut: Cut) -> Workload:
    """Recorded programs, at the times at which they began if those were recorded; a given number of
    ``programs`` begins at once."""
    notes = [f"left out: {number} × {kind}" for kind, number in sorted(traffic.skipped.items())]
    if traffic.calls and programs is None:
        rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        starts = tuple(replace(start, session=_cut(start.session, cut, rng)) for start in traffic.starts)
    else:
        starts = _starts([start.session for start in traffic.starts], programs, seed, cut)
    return Workload(name=name, starts=starts, notes=(*traffic.notes, *notes))


def packaged(programs: int | None, seed: int, cut: Cut, machines: Machines) -> Workload:
    """The recorded sessions inside the package, shrunk where an engine is too small for them."""
    cut = Cut(
        turns=cut.turns or RECORDED_TURNS,
        longest_gap_s=RECORDED_GAP_S if cut.longest_gap_s is None else cut.longest_gap_s,
    )
    scale = min(1.0, machines.longest / LARGEST_CONTEXT)
    sessions = [fitting for session in recorded().sessions if (fitting := _fitting(session)) is not None]
    starts = _starts(sessions, programs or PROGRAMS, seed, cut)
    if scale < 1.0:
        starts = tuple(replace(start, session=_shrink(start.session, scale)) for start in starts)
    return Workload(name=RECORDED, starts=starts, notes=_scaled(scale, machines))


def generate(name: str, programs: int | None, seed: int, machines: Machines) -> Workload:
    """A seeded workload (`generated`), its sizes shrunk where an engine is too small for them."""
    scale = min(1.0, machines.longest / LARGEST_CONTEXT)
    starts = GENERATORS[name](programs or PROGRAMS, seed, scale)
    return Workload(name=name, starts=tuple(starts), notes=_scaled(scale, machines))


def _scaled(scale: float, machines: Machines) -> tuple[str, ...]:
    if scale == 1.0:
        return ()
    return (
        f"contexts and outputs are {scale:.3g} times their size: "
        f"an engine takes {machines.longest:,} tokens at most",
    )


def _starts(sessions: Sequence[Session], programs: int | None, seed: int, cut: Cut) -> tuple[Start, ...]:
    """Every session once before any comes twice; which ones, and in what order, the seed decides."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    starts: list[Start] = []
    wanted = len(sessions) if programs is None else programs
    while len(starts) < wanted:
        for session in rng.sample(sessions, len(sessions))[: wanted - len(starts)]:
            name = f"{len(starts)}:{session.id}"  # a session may be replayed by several programs
            starts.append(
                Start(session=_renamed(_cut(session, cut, rng), name), at=rng.uniform(0, STAGGER_S))
            )
    return tuple(starts)


def _renamed(session: Session, name: str) -> Session:
    turns = (
        replace(
            turn,
            children=tuple(
                _renamed(child, f"{name}/{number}.{nth}") for nth, child in enumerate(turn.children)
            ),
        )
        for number, turn in enumerate(session.turns)
    )
    return replace(session, id=name, turns=tuple(turns))


def _cut(session: Session, cut: Cut, rng: random.Random) -> Session:
    start, length = 0, len(session.turns)
    if cut.turns is not None and cut.turns < length:
        start, length = rng.randrange(length - cut.turns + 1), cut.turns
    longest = math.inf if cut.longest_gap_s is None else cut.longest_gap_s
    turns = tuple(
        replace(
            turn,
            gap_s=min(turn.gap_s, longest),
            children=tuple(_cut(child, cut, rng) for child in turn.children),
        )
        for turn in session.window(start, length).turns
    )
    return replace(session, turns=turns)


def _fitting(session: Session) -> Session | None:
    """The longest stretch of a session whose contexts, its sub-agents' too, are of the usual size; the few
    that are larger than most engines take would otherwise decide how much all others are shrunk."""
    best = start = length = 0
    for number, turn in enumerate(session.turns):
        if turn.prompt_tokens + turn.output_tokens > LARGEST_CONTEXT:
            start = number + 1
        elif number + 1 - start > length:
            best, length = start, number + 1 - start
    if not length:
        return None
    cut = session.window(best, length)
    turns = (
        replace(
            turn, children=tuple(small for child in turn.children if (small := _fitting(child)) is not None)
        )
        for turn in cut.turns
    )
    return replace(cut, turns=tuple(turns))


def _shrink(session: Session, scale: float) -> Session:
    def size(tokens: int) -> int:
        return max(1, int(tokens * scale))

    turns = tuple(
        replace(
            turn,
            prompt_tokens=size(turn.prompt_tokens),
            output_tokens=size(turn.output_tokens),
            shared_tokens=int(turn.shared_tokens * scale),
            children=tuple(_shrink(child, scale) for child in turn.children),
        )
        for turn in session.turns
    )
    return replace(session, system_tokens=int(session.system_tokens * scale), turns=turns)
