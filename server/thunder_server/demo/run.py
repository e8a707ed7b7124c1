"""One run: a plan, replayed by agent processes through a server to engines, under one policy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from thunder_sdk import wire
from thunder_server.demo import engines
from thunder_server.demo.agents import READY, Assignment
from thunder_server.demo.engines import CacheCounts
from thunder_server.demo.fleet import READY_WITHIN_S, DemoError, Fleet, Process, free_ports, read_lines
from thunder_server.demo.plan import Script
from thunder_server.demo.records import Closed, Failed, Opened, Record, parse

AGENT_PROCESSES = 2
AGENTS_MODULE = "thunder_server.demo.agents"
EMULATED_MODEL = "qwen3-coder-30b"

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """Engines that a run starts for itself, so that every run begins with cold caches."""

    kv_tokens: int  # per replica
    speed: float
    replicas: int = 2
    preset: str = "h100-qwen30b"
    block_size: int = 64

    @property
    def capacities(self) -> tuple[int, ...]:
        return (self.kv_tokens,) * self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """Engines that exist and go on existing."""

    urls: tuple[str, ...]
    capacities: tuple[int, ...]
    block_size: int

    @property
    def replicas(self) -> int:
        return len(self.urls)

    @property
    def kv_tokens(self) -> int:
        """Per replica, on average."""
        return sum(self.capacities) // self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a run is to do. ``workload`` names it in results; ``salt`` begins its prompts."""

    workload: str
    policy: str
    scripts: tuple[Script, ...]
    engines: Emulated | Real
    salt: str

    @property
    def calls(self) -> int:
        return sum(script.calls for script in self.scripts)


@dataclass(slots=True, kw_only=True)
class Run:
    """What came of it: all that was recorded, in the order in which it came in."""

    task: Task
    backends: tuple[str, ...] = ()
    records: list[Record] = field(default_factory=list)
    transitions: list[Mapping[str, Any]] = field(default_factory=list)  # of the server's event stream
    cache: CacheCounts | None = None
    started: float = 0.0  # Unix seconds

    def of(self, kind: type[_R]) -> list[_R]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def ended(self) -> float:
        """When the last agent was through."""
        return max((record.at for record in self.of(Closed)), default=self.started)


class Watcher:
    """Is told how a run goes; this one says nothing."""

    def starting(self, task: Task, what: str) -> None: ...

    def begun(self, run: Run) -> None: ...

    def recorded(self, run: Run, record: Record) -> None: ...

    def transition(self, run: Run, transition: Mapping[str, Any]) -> None: ...

    def ended(self, run: Run) -> None: ...


async def perform(task: Task, watcher: Watcher) -> Run:
    """Start everything, run the agents to their end, stop everything."""
    run = Run(task=task)
    with tempfile.TemporaryDirectory(prefix="thunder-demo-") as folder:
        async with (
            Fleet(Path(folder)) as fleet,
            engines.session() as session,
        ):
            await _Stage(run, fleet, session, watcher).play()
    watcher.ended(run)
    return run


class _Stage:
    """A run while it is performed."""

    def __init__(self, run: Run, fleet: Fleet, session: aiohttp.ClientSession, watcher: Watcher) -> None:
        self.run, self.task = run, run.task
        self.fleet, self.session = fleet, session
        self.watcher = watcher

    async def play(self) -> None:
        run, task = self.run, self.task
        urls = await self._start_engines()
        server, base_url = await self._start_server(urls)
        hands = _deal(task.scripts)
        self.watcher.starting(task, "agents")
        agents = [await self.fleet.module(f"agents {n}", AGENTS_MODULE) for n in range(1, len(hands) + 1)]
        await self.fleet.wait_ready(server, f"{base_url}/readyz")
        run.backends = await self._backends(base_url, len(urls))
        model, _ = await engines.read_model(self.session, urls[0])
        sizes = await engines.measure_sizes(self.session, urls[0], model)
        assignments = [
            Assignment(base_url=base_url, model=model, salt=task.salt, sizes=sizes, scripts=scripts)
            for scripts in hands
        ]
        before = await engines.read_cache_counts(self.session, urls)
        async with self._listening(base_url):
            await self._act(agents, assignments)
        after = await engines.read_cache_counts(self.session, urls)
        run.cache = after.since(before) if before is not None and after is not None else None
        if failed := run.of(Failed):
            raise DemoError(
                f"{len(failed)} of {len(task.scripts)} agents failed; the first one: {failed[0].error}"
            )

    async def _start_engines(self) -> tuple[str, ...]:
        kind = self.task.engines
        if isinstance(kind, Real):
            return kind.urls
        self.watcher.starting(self.task, f"{kind.replicas} engines")
        ports = free_ports(kind.replicas)
        for number, port in enumerate(ports, 1):
            await self.fleet.thunder(
                f"engine {number}",
                *("emulate", "--port", str(port), "--model", EMULATED_MODEL, "--preset", kind.preset),
                *("--kv-tokens", str(kind.kv_tokens), "--block-size", str(kind.block_size)),
                *("--speed", f"{kind.speed:g}"),
            )
        return tuple(f"http://127.0.0.1:{port}" for port in ports)

    async def _start_server(self, urls: Sequence[str]) -> tuple[Process, str]:
        self.watcher.starting(self.task, "the server")
        (port,) = free_ports(1)
        backends = [argument for url in urls for argument in ("--backend", url)]
        process = await self.fleet.thunder(
            "server", "serve", *backends, "--port", str(port), "--policy", self.task.policy
        )
        return process, f"http://127.0.0.1:{port}"

    async def _backends(self, server: str, expected: int) -> tuple[str, ...]:
        """The server's names for the engines, once it knows all of them and their capacity."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_WITHIN_S
        while True:
            listed = (await engines.fetch_json(self.session, f"{server}{wire.CONTROL_PREFIX}/backends"))[
                "backends"
            ]
            lacking = [one for one in listed if not (one["healthy"] and one["capacity_tokens"])]
            if len(listed) == expected and not lacking:
                return tuple(one["id"] for one in listed)
            self.fleet.check()
            if loop.time() > deadline:
                raise DemoError(
                    f"the engine at {lacking[0]['url']} is not healthy, or does not say how many tokens its "
                    "KV cache holds; see its /health and /metrics"
                )
            await asyncio.sleep(0.1)

    async def _act(self, agents: Sequence[Process], assignments: Sequence[Assignment]) -> None:
        """Hand out the work as soon as all are ready, and take records until the last one is through."""
        ready = 0

        def take(line: bytes) -> None:
            nonlocal ready
            if line != READY:
                self._record(parse(line))
                return
            ready += 1
            if ready == len(agents):
                self.watcher.begun(self.run)
                for process, assignment in zip(agents, assignments, strict=True):
                    assert process.handle.stdin is not None
                    process.handle.stdin.write(assignment.to_line())

        await self.fleet.while_alive(read_lines(agents, take))
        await asyncio.gather(*(process.handle.wait() for process in agents))
        self.fleet.check()

    def _record(self, record: Record) -> None:
        if not self.run.records:
            assert isinstance(record, Opened), "agents open their programs first"
            self.run.started = record.at
        self.run.records.append(record)
        self.watcher.recorded(self.run, record)

    @contextlib.asynccontextmanager
    async def _listening(self, server: str) -> AsyncIterator[None]:
        """Collect the server's transitions meanwhile."""
        url = f"{server}{wire.CONTROL_PREFIX}/stream"
        async with self.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            listening = asyncio.create_task(self._listen(stream))
            try:
                yield
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, stream: aiohttp.ClientResponse) -> None:
        async for line in stream.content:
            if line.startswith(b"data:"):
                transition = json.loads(line[5:])
                self.run.transitions.append(transition)
                self.watcher.transition(self.run, transition)


def _deal(scripts: Sequence[Script]) -> list[tuple[Script, ...]]:
    """The scripts, dealt out to the agent processes."""
    hands = (tuple(scripts[first::AGENT_PROCESSES]) for first in range(AGENT_PROCESSES))
    return [hand for hand in hands if hand]
