"""The same work in the simulator: what it says of targets that it can play, to compare with what they did.

The simulator knows steps and nothing else. What a real engine's host needs besides (scheduling, tokenizing,
HTTP) depends on the machine and on what else runs there; it is measured on the engine before any work, with
nothing to do but one call, and given to the simulator.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, ClassVar

import aiohttp

from benchmarks.engines.run import WORKLOAD
from benchmarks.engines.targets import Route, Target, Telling
from benchmarks.engines.work import place
from thunder_server.core import Policy, policy_of_text
from thunder_server.core.fleet import Fleet
from thunder_server.core.global_queue import GlobalQueue
from thunder_server.core.policies import Passthrough, Place
from thunder_server.core.policies._protocol import in_order
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines, Start
from thunder_server.simulation.study import Study, Workload
from thunder_server.simulation.time_model import EnginePreset
from thunder_server.simulation.workload import Session

STEPS = 100
TRIES = 5
DRAWS = 5
ENDLESS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Seconds that an engine's host takes beside the device's: for every step, and for every call."""

    step_s: float = 0.0
    call_s: float = 0.0

    def slowed(self, preset: EnginePreset) -> EnginePreset:
        return replace(preset, time=replace(preset.time, base=preset.time.base + self.step_s))

    def delayed(self, session: Session) -> Session:
        """Clients see what a call takes at the host as a longer way to the next one."""
        return replace(
            session, turns=tuple(replace(turn, gap_s=turn.gap_s + self.call_s) for turn in session.turns)
        )


async def measure_host(session: aiohttp.ClientSession, url: str, model: str, preset: EnginePreset) -> Host:
    """The middle one of a few calls."""

    async def call(output: int) -> float:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"{time.time_ns()}"}],
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
        }
        started = time.perf_counter()
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            prompt = (await response.json())["usage"]["prompt_tokens"]
        return time.perf_counter() - started - preset.call_seconds(prompt, prompt, output)

    short = median([await call(1) for _ in range(TRIES)])
    long = median([await call(1 + STEPS) for _ in range(TRIES)])
    step_s = max(0.0, (long - short) / STEPS)
    return Host(step_s=step_s, call_s=max(0.0, short - step_s))


def simulate(
    target: Target,
    sessions: Sequence[Session],
    seed: int,
    at_a_time: int,
    machines: Machines,
    host: Host | None = None,
) -> dict[str, Any] | None:
    """The row of a simulated run; ``None`` for targets that only exist outside.

    A cache that thrashes is chaotic: a tool that takes a hundredth longer may cost or save many hits. So
    makespan and hit rate are means over `DRAWS` runs whose tools differ that much; the rest is of the first.
    """
    if target.route not in (Route.DIRECT, Route.THUNDER) or target.telling is Telling.BODY:
        return None
    rows = [
        _run(
            target,
            [_shaken(session, draw) for session in sessions],
            seed,
            at_a_time,
            machines,
            host or Host(),
        )
        for draw in range(DRAWS)
    ]
    return rows[0] | {
        "makespan_s": round(fmean(row["makespan_s"] for row in rows), 3),
        "hit_rate": round(fmean(row["hit_rate"] for row in rows), 4),
    }


def endless_memory(sessions: Sequence[Session], at_a_time: int, machines: Machines, host: Host) -> float:
    """Seconds that the work takes on these engines if their memory has no end: nothing waits, nothing is
    computed twice, and no scheduler can do better."""
    target = Target.parse("thunder:passthrough")
    ample = replace(machines, kv_tokens=machines.kv_tokens * ENDLESS)
    return float(_run(target, sessions, 0, at_a_time, ample, host)["makespan_s"])


def _shaken(session: Session, draw: int) -> Session:
    """The session with tools that take a hundredth more or less; at the first draw as it is."""
    rng = random.Random(f"{draw} {session.id}")
    spread = 0.01 if draw else 0.0
    turns = (replace(turn, gap_s=turn.gap_s * rng.uniform(1 - spread, 1 + spread)) for turn in session.turns)
    return replace(session, turns=tuple(turns))


def _run(
    target: Target, sessions: Sequence[Session], seed: int, at_a_time: int, machines: Machines, host: Host
) -> dict[str, Any]:
    explicit = target.telling is Telling.EXPLICIT
    starts = tuple(Start(session=host.delayed(session)) for session in sessions)
    study = Study(
        workload=Workload(name=WORKLOAD, starts=starts),
        machines=replace(machines, preset=host.slowed(machines.preset)),
        signals=Signals.EXPLICIT if explicit else Signals.INFERRED,
        seed=seed,
        at_a_time=target.at_a_time or at_a_time,
    )
    return study.run(target.name, policy_of(target)).row


class Pinned(Passthrough):
    """Nobody schedules: each program talks to the engine that it was given."""

    name: ClassVar[str] = "pinned"

    def restore(self, fleet: Fleet, queue: GlobalQueue, at: float) -> Iterator[Place]:
        for program in in_order(queue):
            backends = fleet.open_to(program)
            yield Place(program, backends[place(program.id) % len(backends)], "it was given this one")


def policy_of(target: Target) -> Policy:
    """The policy that a target schedules by. Raises ``ValueError`` for one that there is not."""
    if target.policy is None:
        return Pinned()
    if target.policy == "cap":
        raise ValueError("cap needs a number of programs: cap:N")
    return policy_of_text(target.policy)
