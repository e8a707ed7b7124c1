"""What each rule of ``phase`` brings: the policy without it, on the same work.

    python -m benchmarks.policy.ablation [--work "small engine"] [--seeds 0,1] [--processes 2]

Two engines whose trade-offs differ: a large one, on which recorded coding agents share two times 1.7 million
tokens, and a small one of 16 thousand tokens, on which computing a context again takes long next to a tool. A
factor below 1 says that the rule is worth that much.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from statistics import geometric_mean, mean

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.policy.work import LOADS, Row
from thunder_server.core import Policy
from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.policies import PhasePolicy, PhaseSettings
from thunder_server.core.policies import phase as rules
from thunder_server.core.program import Program
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines, Start
from thunder_server.simulation.study import Study, Workload
from thunder_server.simulation.time_model import PRESETS
from thunder_server.simulation.workload import Gap, Session, Turn


class NoPatience(PhasePolicy):
    def _worth_displacing(self, *_: object) -> bool:
        return True


class EndlessPatience(PhasePolicy):
    def _worth_displacing(
        self, fleet: Fleet, backend: Backend, program: Program, leaving: object, at: float
    ) -> bool:
        idle = list(rules.longest_idle(backend))
        backend.residue.pass_by(backend.idle_since(idle[0]) if idle else inf)
        return backend.limit - backend.used(at) - backend.residue.tokens >= program.need


class KeepingWarm(PhasePolicy):
    def __init__(self) -> None:
        super().__init__(PhaseSettings(keep_warm=True))


class NoRoomForGrowth(PhasePolicy):
    def _reserve(self, backend: Backend, at: float) -> float:
        return 0.0


class NoLending(PhasePolicy):
    def _gives_way(self, backend: Backend, idle: Program, program: Program, at: float) -> str | None:
        reason = super()._gives_way(backend, idle, program, at)
        return None if reason is None or "will be away" in reason else reason


class NoSlices(PhasePolicy):
    def _waited(self, program: Program, at: float) -> float:
        return min(super()._waited(program, at), rules.PATIENCE_S)


class NoOvertaking(PhasePolicy):
    def _waited(self, program: Program, at: float) -> float:
        return max(super()._waited(program, at), rules.PATIENCE_S + 1)


class NoLearning(PhasePolicy):
    """Where no duration is given, what has taken some time is taken to take as long again."""

    def _away_s(self, program: Program, at: float) -> float:
        known = [block for block in program.acting.values() if block.expected_s is not None]
        if known or program.tool_finished_at is not None:
            return super()._away_s(program, at)
        started = (block.started_at for block in program.acting.values())
        return at - min(started, default=program.acting_since)


class NoHeadStart(PhasePolicy):
    def _head_start_s(self, program: Program) -> float:
        return 0.0


class NoSharedCredit(PhasePolicy):
    prefix_aware = False


RULES: Mapping[str, type[PhasePolicy]] = {
    "all rules": PhasePolicy,
    "no patience with the cache": NoPatience,
    "endless patience with it": EndlessPatience,
    "keeping warm instead of it": KeepingWarm,
    "no room kept for growth": NoRoomForGrowth,
    "no lending of acting programs' room": NoLending,
    "no time slices": NoSlices,
    "no overtaking": NoOvertaking,
    "no learned durations": NoLearning,
    "no head start for who holds up others": NoHeadStart,
    "no router, no credit for shared prefixes": NoSharedCredit,
}


def recorded(seed: int, signals: Signals) -> Study:
    return replace(LOADS[1].study(seed, signals))


def small(seed: int, signals: Signals, *, slow: float = 0.0) -> Study:
    """96 programs, 24 at a time, of 5 to 15 turns with tools of 1 to 3 s, from 0.9 to 3.4 thousand tokens."""
    starts = []
    for number in range(96):
        rng = random.Random(f"small {seed} {number}")
        prompt, shared, turns = 875, 0, []
        for turn in range(rng.randint(5, 15)):
            gap_s = rng.uniform(1.0, 3.0) * (10 if rng.random() < slow else 1) if turn else 0.0
            turns.append(
                Turn(
                    prompt_tokens=prompt,
                    output_tokens=24,
                    shared_tokens=shared,
                    gap_s=gap_s,
                    gap=Gap.TOOL if turn else Gap.START,
                )
            )
            shared, prompt = prompt, prompt + 224
        starts.append(
            Start(session=Session(id=f"p{number}", model="m", system_tokens=70, turns=tuple(turns)))
        )
    preset = PRESETS["cpu-small"]
    return Study(
        workload=Workload(name="small", starts=tuple(starts)),
        machines=Machines(preset=preset, replicas=2, kv_tokens=preset.kv_tokens),
        signals=signals,
        seed=seed,
        at_a_time=24,
    )


def slow(seed: int, signals: Signals) -> Study:
    """A tenth of the tools take ten times as long."""
    return small(seed, signals, slow=0.1)


WORKS: Mapping[str, Callable[[int, Signals], Study]] = {
    "recorded": recorded,
    "small engine": small,
    "small, some tools slow": slow,
}


@dataclass(frozen=True, slots=True)
class Ablated:
    """One run: a work, and a policy that lacks a rule."""

    work: str
    rule: str
    seed: int
    signals: Signals = Signals.EXPLICIT

    def run(self) -> Row:
        policy: Policy = RULES[self.rule]()
        return WORKS[self.work](self.seed, self.signals).run(self.rule, policy).row


def ablated(works: Sequence[str], seeds: Sequence[int]) -> Iterator[Ablated]:
    for work in works:
        for seed in seeds:
            yield from (Ablated(work, rule, seed) for rule in RULES)
            yield from (
                Ablated(work, rule, seed, Signals.INFERRED) for rule in ("all rules", "no learned durations")
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy.ablation", description=__doc__)
    parser.add_argument("--seeds", default="0,1,2", metavar="LIST")
    parser.add_argument("--work", choices=WORKS, help="one of the works; default: all")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    arguments = parser.parse_args()
    works = [arguments.work] if arguments.work else list(WORKS)
    runs = list(ablated(works, [int(seed) for seed in arguments.seeds.split(",")]))
    with ProcessPoolExecutor(arguments.processes) as pool:
        rows = dict(zip(runs, pool.map(Ablated.run, runs), strict=True))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    for work in works:
        console.print(_table(work, {run: row for run, row in rows.items() if run.work == work}))


def _table(work: str, rows: Mapping[Ablated, Row]) -> Table:
    table = Table(title=work, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "signals", "as fast", "hit %", "wait p99", "pauses"):
        table.add_column(heading, justify="left" if heading in ("", "signals") else "right", no_wrap=True)
    whole = {run.seed: row for run, row in rows.items() if run == Ablated(work, "all rules", run.seed)}
    for rule, signals in dict.fromkeys((run.rule, run.signals) for run in rows):
        mine = [row for run, row in rows.items() if (run.rule, run.signals) == (rule, signals)]
        factors = [whole[row["seed"]]["makespan_s"] / row["makespan_s"] for row in mine]
        table.add_row(
            rule,
            signals.value,
            f"{geometric_mean(factors):.2f} ({min(factors):.2f}-{max(factors):.2f})",
            f"{100 * mean(row['hit_rate'] for row in mine):.1f}",
            f"{mean(row['wait_s']['p99'] for row in mine):.0f}",
            f"{mean(row['pauses'] for row in mine):.0f}",
        )
    return table


if __name__ == "__main__":
    main()
