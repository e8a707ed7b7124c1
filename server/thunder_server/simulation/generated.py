"""Seeded workloads: agents of the kinds that there are, by the figures that are known of them.

Sizes follow the recorded coding agents (`workload.recorded`): first prompts of 24.5k tokens in the median,
answers of 216, growth of 660 a turn in the median and 17k in its largest hundredth. The kinds differ in how
long agents are away from the engine, and in how they come:

* ``swe``: coding agents in a harness. 86 % of the tools end within 1 s, 95 % within 10 s, some take minutes.
* ``assistant``: coding assistants. Tools of 9 s in the median, a twentieth of them above 168 s; before every
  sixth turn a person reads and writes, 124 s in the median.
* ``orchestration``: agents that call remote tools of random length, 20 s in the mean, and sometimes send out
  up to three sub-agents, for which they wait.
* ``rl-group``: groups of eight that begin with the same prompt and all at once, as in reinforcement learning;
  tools as in ``swe``.
* ``burst``: ``swe``, a quarter of the agents every 30 s.

Equal seeds give equal workloads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from thunder_server.simulation.simulator import Start
from thunder_server.simulation.workload import Gap, Session, Turn

STAGGER_S = 1.0
SYSTEM_TOKENS = 10_000  # tools and instructions, the same for all agents of a workload
LARGEST_CONTEXT = 160_000
LARGEST_OUTPUT = 4000
TURNS = (8, 24)
GROUP = 8
BURSTS, BURST_S = 4, 30.0

Gaps = Callable[[random.Random], tuple[float, Gap]]


def _spread(median: float, at: float, share: float) -> tuple[float, float]:
    """μ and σ of the log-normal with this median of which ``share`` lies below ``at``."""
    quantile = {0.86: 1.080, 0.95: 1.645, 0.99: 2.326}[share]
    return math.log(median), math.log(at / median) / quantile


_FIRST = _spread(24_500, 100_000, 0.99)
_GROWTH = _spread(660, 17_000, 0.99)
_OUTPUT = _spread(216, 2_500, 0.99)
_TOOL = _spread(9.0, 168.0, 0.95)
_PERSON = _spread(124.0, 900.0, 0.95)
# Two shares fix this one: within 1 s 1.080 σ above the median, within 10 s 1.645 σ.
_SHORT_SIGMA = math.log(10) / (1.645 - 1.080)
_SHORT = (-1.080 * _SHORT_SIGMA, _SHORT_SIGMA)


def _short_tool(rng: random.Random) -> tuple[float, Gap]:
    return min(300.0, rng.lognormvariate(*_SHORT)), Gap.TOOL


def _assistant(rng: random.Random) -> tuple[float, Gap]:
    if rng.random() < 1 / 6:
        return min(900.0, rng.lognormvariate(*_PERSON)), Gap.HUMAN
    return min(600.0, rng.lognormvariate(*_TOOL)), Gap.TOOL


def _remote_tool(rng: random.Random) -> tuple[float, Gap]:
    return rng.expovariate(1 / 20.0), Gap.TOOL


class _Writer:
    """Writes sessions of one workload; ``scale`` times the sizes above."""

    def __init__(self, name: str, gaps: Gaps, seed: int, scale: float) -> None:
        self.name = name
        self.rng = random.Random(f"{name} {seed}")  # noqa: S311 - reproducible, not secret
        self._gaps = gaps
        self._scale = scale

    def size(self, shape: tuple[float, float], largest: float) -> int:
        return max(1, round(min(largest, self.rng.lognormvariate(*shape)) * self._scale))

    def first_prompt(self) -> int:
        return max(round(SYSTEM_TOKENS * self._scale) + 1, self.size(_FIRST, LARGEST_CONTEXT / 2))

    def session(
        self, number: int, *, children: bool = False, shared_prompt: tuple[str, int] | None = None
    ) -> Session:
        name = f"{self.name}-{number}"
        family, prompt = shared_prompt or (self.name, self.first_prompt())
        system = prompt if shared_prompt else round(SYSTEM_TOKENS * self._scale)
        return self._session(name, family, system, prompt, self.rng.randint(*TURNS), children=children)

    def _session(
        self, name: str, family: str, system: int, prompt: int, turns: int, *, children: bool
    ) -> Session:
        written: list[Turn] = []
        shared = 0
        for number in range(turns):
            output = self.size(_OUTPUT, LARGEST_OUTPUT)
            if prompt + output > LARGEST_CONTEXT * self._scale:
                break
            gap_s, gap = self._gaps(self.rng) if number else (0.0, Gap.START)
            young: tuple[Session, ...] = ()
            if children and number and self.rng.random() < 0.08:
                young = tuple(
                    self._session(
                        f"{name}.{number}.{child}",
                        family,
                        system,
                        self.first_prompt(),
                        self.rng.randint(2, 4),
                        children=False,
                    )
                    for child in range(self.rng.randint(1, 3))
                )
                gap_s = 0.0
            written.append(
                Turn(
                    prompt_tokens=prompt,
                    output_tokens=output,
                    shared_tokens=shared,
                    gap_s=gap_s,
                    gap=gap,
                    children=young,
                )
            )
            shared = prompt
            prompt += output + self.size(_GROWTH, LARGEST_CONTEXT / 4)
        return Session(id=name, model=family, system_tokens=system, turns=tuple(written))


def _plain(name: str, gaps: Gaps, programs: int, seed: int, scale: float) -> list[Start]:
    writer = _Writer(name, gaps, seed, scale)
    return [Start(session=writer.session(n), at=writer.rng.uniform(0, STAGGER_S)) for n in range(programs)]


def swe(programs: int, seed: int, scale: float) -> list[Start]:
    return _plain("swe", _short_tool, programs, seed, scale)


def assistant(programs: int, seed: int, scale: float) -> list[Start]:
    return _plain("assistant", _assistant, programs, seed, scale)


def orchestration(programs: int, seed: int, scale: float) -> list[Start]:
    writer = _Writer("orchestration", _remote_tool, seed, scale)
    return [
        Start(session=writer.session(n, children=True), at=writer.rng.uniform(0, STAGGER_S))
        for n in range(programs)
    ]


def rl_group(programs: int, seed: int, scale: float) -> list[Start]:
    writer = _Writer("rl-group", _short_tool, seed, scale)
    starts: list[Start] = []
    for number in range(programs):
        if number % GROUP == 0:
            shared_prompt = (f"rl-group-{number // GROUP}", writer.first_prompt())
        session = writer.session(number, shared_prompt=shared_prompt)
        starts.append(Start(session=session, at=writer.rng.uniform(0, STAGGER_S), group=shared_prompt[0]))
    return starts


def burst(programs: int, seed: int, scale: float) -> list[Start]:
    writer = _Writer("burst", _short_tool, seed, scale)
    return [
        Start(
            session=writer.session(n),
            at=n * BURSTS // programs * BURST_S + writer.rng.uniform(0, STAGGER_S),
        )
        for n in range(programs)
    ]


GENERATORS: Mapping[str, Callable[[int, int, float], list[Start]]] = MappingProxyType(
    {"swe": swe, "assistant": assistant, "orchestration": orchestration, "rl-group": rl_group, "burst": burst}
)
"""By name: ``(programs, seed, scale)`` to programs; ``scale`` shrinks contexts and outputs alike."""
