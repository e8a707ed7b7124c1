"""The work: recorded coding agents, a fixed number of them live at a time, until all are done.

Every program replays 16 consecutive turns from a random place of its session, gaps cut to a minute, as
``thunder simulate`` does. ``live`` programs are in play at any time: whenever one ends the next one begins,
so that the working set stays what it is until the work runs out. There is four times as much work as that,
or else a run would be little more than its beginning and its end; makespans, not steps in a window, are
compared, because a window flatters a thrashing system, whose programs never get past their short first
turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from thunder_server.core import Policy
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines
from thunder_server.simulation.study import Cut, Study, packaged
from thunder_server.simulation.time_model import PRESETS

Row = dict[str, Any]

ROUNDS = 4
"""Programs in all, per one that is live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A level of load: how many programs are ``live`` on two engines of the preset.

    ``working_set`` is what that comes to, contexts of live programs ÷ KV of all engines; the runs report it
    exactly.
    """

    working_set: float
    live: int

    def study(self, seed: int, signals: Signals = Signals.EXPLICIT) -> Study:
        preset = PRESETS["h100-qwen30b"]
        machines = Machines(preset=preset, replicas=2, kv_tokens=preset.kv_tokens)
        return Study(
            workload=packaged(ROUNDS * self.live, seed, Cut(), machines),
            machines=machines,
            signals=signals,
            seed=seed,
            at_a_time=self.live,
        )


LOADS = (Load(working_set=0.5, live=24), Load(working_set=1.5, live=68), Load(working_set=2.5, live=112))
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a policy, by the name it is listed under, on the work of one load and seed."""

    load: Load
    seed: int
    name: str
    policy: Policy
    signals: Signals = Signals.EXPLICIT

    def run(self) -> Row:
        """Simulate: the row that all our benchmarks share, and the details beside it."""
        result = self.load.study(self.seed, self.signals).run(self.name, self.policy)
        return {**result.row, "load": self.load.working_set, "details": result.details}


def run_all(jobs: Iterable[Job], processes: int) -> Iterator[Row]:
    """The rows of all jobs, in order, each as soon as it is there."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(Job.run, jobs)
