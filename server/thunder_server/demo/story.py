"""The demo itself: which runs, in which order, on engines of which size.

Two pairs of runs. In the first, the agents' contexts together need about twice the engines' KV cache, which
is where a scheduler has something to do. In the second a quarter of the agents runs on the same engines; all
their contexts fit, and a scheduler must not cost anything. Each pair is first run without scheduling
(`passthrough`: sticky and least loaded, as a good router does it), then with the server's default policy.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from thunder_server.demo import engines, plan
from thunder_server.demo.fleet import DemoError
from thunder_server.demo.measures import Result, measure
from thunder_server.demo.plan import Script, Shape
from thunder_server.demo.run import Emulated, Real, Task, Watcher, perform
from thunder_server.settings import Settings
from thunder_server.simulation.workload import recorded

BASELINE = "passthrough"
SCHEDULER: str = Settings.model_fields["policy"].default
WORKLOAD = "recorded-coding-agents"

OVER = 2.0  # contexts ÷ KV cache in the first pair
UNDER_SHARE = 4  # the second pair has this fraction of the agents
SPEED = 15.0  # emulated seconds per second
TURNS = 8
QUICK_AGENTS, QUICK_TURNS, QUICK_SPEED = 24, 6, 20.0
_KV_STEP = 10_000
_RESERVE = 64  # tokens that prompts may come out longer than planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    backends: tuple[str, ...] = ()
    agents: int | None = None
    quick: bool = False
    working_set: float | None = None  # only one pair, with this much

    @property
    def agent_count(self) -> int:
        return self.agents or (QUICK_AGENTS if self.quick else 48)

    @property
    def turns(self) -> int:
        return QUICK_TURNS if self.quick else TURNS

    @property
    def speed(self) -> float:
        if self.backends:
            return 1.0
        return QUICK_SPEED if self.quick else SPEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same work without and with the scheduler."""

    title: str
    baseline: Result
    scheduled: Result

    @property
    def speedup(self) -> float:
        return self.baseline.makespan_s / self.scheduled.makespan_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is about to be run: engines and, by title, the scripts of each pair."""

    engines: Emulated | Real
    chapters: tuple[tuple[str, tuple[Script, ...]], ...]
    shrunk: float  # factor by which contexts and outputs were shrunk, 1 if not
    speed: float

    def tasks(self, title: str, scripts: tuple[Script, ...]) -> tuple[Task, Task]:
        def task(policy: str) -> Task:
            return Task(
                workload=WORKLOAD,
                policy=policy,
                scripts=scripts,
                engines=self.engines,
                salt=uuid.uuid4().hex[:8],
            )

        return task(BASELINE), task(SCHEDULER)


async def outline(options: Options) -> Outline:
    """Fit emulated engines to the work, and the work to real ones."""
    shape = Shape(turns=options.turns)
    scripts = plan.write_scripts(recorded().sessions, options.agent_count, shape, speed=options.speed)
    target = options.working_set or OVER
    kind: Emulated | Real
    if options.backends:
        kind, shrunk = await _fit_work(options.backends, scripts, target)
        scripts = plan.shrink(scripts, shrunk)
    else:
        kind, shrunk = _fit_engines(scripts, target, options.speed), 1.0
    return Outline(
        engines=kind, chapters=_chapters(options, scripts, kind), shrunk=shrunk, speed=options.speed
    )


def _chapters(
    options: Options, scripts: tuple[Script, ...], kind: Emulated | Real
) -> tuple[tuple[str, tuple[Script, ...]], ...]:
    if options.working_set is not None or options.quick:
        return ((_title(scripts, kind), scripts),)
    few = scripts[: max(1, len(scripts) // UNDER_SHARE)]
    return (_title(scripts, kind), scripts), (_title(few, kind), few)


def _title(scripts: Sequence[Script], kind: Emulated | Real) -> str:
    share = plan.total_context(scripts) / sum(kind.capacities)
    return f"{len(scripts)} agents, contexts ≈ {share:.1f} × the KV cache"


def _fit_engines(scripts: Sequence[Script], target: float, speed: float) -> Emulated:
    replicas = 2
    wanted = plan.total_context(scripts) / target / replicas
    least = 1.5 * max(script.largest_context for script in scripts)
    kv_tokens = math.ceil(max(wanted, least) / _KV_STEP) * _KV_STEP
    return Emulated(kv_tokens=kv_tokens, speed=speed, replicas=replicas)


async def _fit_work(urls: tuple[str, ...], scripts: Sequence[Script], target: float) -> tuple[Real, float]:
    """Real engines, and by how much contexts have to shrink for them."""
    capacities, block_sizes, limits = [], [], []
    async with engines.session() as session:
        for url in urls:
            _, limit = await engines.read_model(session, url)
            memory = await engines.read_memory(session, url)
            if memory is None:
                raise DemoError(
                    f"{url}/metrics does not say how many tokens the KV cache holds "
                    "(vllm:cache_config_info), so the work cannot be fitted to it; is it a vLLM engine?"
                )
            capacity, block_size = memory
            capacities.append(capacity)
            block_sizes.append(block_size)
            limits.append(min(limit or capacity, capacity // 2) - _RESERVE)
    shrunk = min(
        1.0,
        target * sum(capacities) / plan.total_context(scripts),
        min(limits) / max(script.largest_context for script in scripts),
    )
    real = Real(
        urls=tuple(engines.root(url) for url in urls),
        capacities=tuple(capacities),
        block_size=max(block_sizes),
    )
    return real, shrunk


async def tell(story: Outline, watcher: Watcher) -> list[Pair]:
    """Run it all."""
    pairs = []
    for title, scripts in story.chapters:
        without, scheduled = story.tasks(title, scripts)
        pairs.append(
            Pair(
                title=title,
                baseline=measure(await perform(without, watcher)),
                scheduled=measure(await perform(scheduled, watcher)),
            )
        )
    return pairs
