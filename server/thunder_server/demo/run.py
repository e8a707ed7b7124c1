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
from thunder_server.demo.agents import Assignment
from thunder_server.demo.engines import CacheCounts
from thunder_server.demo.fleet import READY_WITHIN_S, DemoError, Fleet, Process, free_ports, read_lines
from thunder_server.demo.plan import Script
from thunder_server.demo.records import Closed, Failed, Opened, Record, parse

AGENT_PROCESSES = 2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """Engines that exist and go on existing."""

    urls: tuple[str, ...]
    kv_tokens: int  # per replica, on average
    block_size: int = 16

    @property
    def replicas(self) -> int:
        return len(self.urls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a run is to do. ``workload`` names it in results, ``arguments`` are more flags for the server."""

    workload: str
    policy: str
    scripts: tuple[Script, ...]
    engines: Emulated | Real
    salt: str
    arguments: tuple[str, ...] = ()

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
    timeout = aiohttp.ClientTimeout(total=30)
    with tempfile.TemporaryDirectory(prefix="thunder-demo-") as folder:
        async with (
            Fleet(Path(folder)) as fleet,
            aiohttp.ClientSession(timeout=timeout) as session,
        ):
            stage = _Stage(run, fleet, session, Path(folder), watcher)
            await stage.play()
    watcher.ended(run)
    return run


class _Stage:
    def __init__(
        self, run: Run, fleet: Fleet, session: aiohttp.ClientSession, folder: Path, watcher: Watcher
    ) -> None:
        self.run, self.task = run, run.task
        self.fleet, self.session, self.folder = fleet, session, folder
        self.watcher = watcher

    async def play(self) -> None:
        run = self.run
        urls = await self._engines()
        server = await self._server(urls)
        run.backends = await self._backends(server, len(urls))
        model, _ = await engines.read_model(self.session, urls[0])
        sizes = await engines.measure_sizes(self.session, urls[0], model)
        self.watcher.starting(self.task, "agents")
        agents = [
            await self._agents(
                number,
                Assignment(base_url=server, model=model, salt=self.task.salt, sizes=sizes, scripts=scripts),
            )
            for number, scripts in enumerate(_deal(self.task.scripts))
        ]
        before = await engines.read_cache_counts(self.session, urls)
        async with self._listening(server):
            await self._agents_act(agents)
        after = await engines.read_cache_counts(self.session, urls)
        run.cache = after.since(before) if before is not None and after is not None else None
        if failed := run.of(Failed):
            raise DemoError(
                f"{len(failed)} of {len(self.task.scripts)} agents failed; the first one: {failed[0].error}"
            )

    async def _engines(self) -> tuple[str, ...]:
        engines = self.task.engines
        if isinstance(engines, Real):
            return engines.urls
        self.watcher.starting(self.task, f"{engines.replicas} engines")
        urls = [f"http://127.0.0.1:{port}" for port in free_ports(engines.replicas)]
        started = [
            await self.fleet.thunder(
                f"engine {number}",
                "emulate",
                "--port",
                url.rpartition(":")[2],
                "--model",
                EMULATED_MODEL,
                "--preset",
                engines.preset,
                "--kv-tokens",
                str(engines.kv_tokens),
                "--block-size",
                str(engines.block_size),
                "--speed",
                f"{engines.speed:g}",
            )
            for number, url in enumerate(urls, 1)
        ]
        for process, url in zip(started, urls, strict=True):
            await self.fleet.wait_ready(process, f"{url}/health")
        return tuple(urls)

    async def _server(self, urls: Sequence[str]) -> str:
        self.watcher.starting(self.task, "the server")
        (port,) = free_ports(1)
        base_url = f"http://127.0.0.1:{port}"
        backends = [argument for url in urls for argument in ("--backend", url)]
        process = await self.fleet.thunder(
            "server",
            "serve",
            *backends,
            "--port",
            str(port),
            "--policy",
            self.task.policy,
            *self.task.arguments,
        )
        await self.fleet.wait_ready(process, f"{base_url}/readyz")
        return base_url

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
            if loop.time() > deadline:
                raise DemoError(
                    f"the engine at {lacking[0]['url']} is not healthy, or does not say how many tokens its "
                    "KV cache holds; see its /health and /metrics"
                )
            await asyncio.sleep(0.1)

    async def _agents(self, number: int, assignment: Assignment) -> Process:
        path = self.folder / f"assignment-{number}.json"
        assignment.write(path)
        return await self.fleet.module(f"agents {number + 1}", "thunder_server.demo.agents", str(path))

    async def _agents_act(self, agents: Sequence[Process]) -> None:
        ready = 0
        async for line in read_lines(agents):
            if line == b"ready\n":
                ready += 1
                if ready == len(agents):
                    self._go(agents)
                continue
            record = parse(line)
            if not self.run.records:
                self.run.started = record.at if isinstance(record, Opened) else 0.0
            self.run.records.append(record)
            self.watcher.recorded(self.run, record)
        for process in agents:
            if await process.handle.wait():
                raise process.failure()

    def _go(self, agents: Sequence[Process]) -> None:
        self.watcher.begun(self.run)
        for process in agents:
            assert process.handle.stdin is not None
            process.handle.stdin.write(b"go\n")

    @contextlib.asynccontextmanager
    async def _listening(self, server: str) -> AsyncIterator[None]:
        """Collect the server's transitions meanwhile."""
        listening = asyncio.create_task(self._listen(f"{server}{wire.CONTROL_PREFIX}/stream"))
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await listening

    async def _listen(self, url: str) -> None:
        async with self.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    transition = json.loads(line[5:])
                    self.run.transitions.append(transition)
                    self.watcher.transition(self.run, transition)


def _deal(scripts: Sequence[Script]) -> list[tuple[Script, ...]]:
    """The scripts, dealt out to the agent processes."""
    hands = (tuple(scripts[first::AGENT_PROCESSES]) for first in range(AGENT_PROCESSES))
    return [hand for hand in hands if hand]
