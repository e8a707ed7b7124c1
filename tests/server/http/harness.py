"""The data plane on a real port before fake engines, as tests use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from thunder_server.app import make_app, start_server
from thunder_server.auth import Keys
from thunder_server.backend_spec import BackendSpec
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.decisions import Decision
from thunder_server.core.events import Event
from thunder_server.core.policies import make_policy
from thunder_server.core.program import Program
from thunder_server.core.scheduler import Scheduler
from thunder_server.proxy import Proxy
from thunder_server.runtime import Runtime

from .fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**HELLO, "stream": True}


@dataclass
class Served:
    """A running data plane: its ``url``, what is behind it, and a client that decodes nothing."""

    url: str
    runtime: Runtime
    client: aiohttp.ClientSession
    events: list[Event]
    decisions: list[Decision]
    _changed: asyncio.Condition

    async def chat(
        self, body: Any = HELLO, program: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """``(status, headers, JSON body)`` of one call."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if program is not None:
            named["X-Thunder-Program-Id"] = program
        async with self.client.post(self.url + CHAT, json=body, headers=named) as answer:
            return answer.status, answer.headers, await answer.json(content_type=None)

    async def stream(self, body: Any = STREAM, path: str = CHAT, **headers: str) -> bytes:
        """The whole body of a streamed call."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url + path, json=body, headers=named) as answer:
            return await answer.read()

    def program(self, program_id: str) -> Program:
        program = self.runtime.scheduler.program(program_id)
        assert program is not None
        return program

    def view(self, program_id: str) -> dict[str, Any]:
        return self.runtime.scheduler.view(self.program(program_id), self.runtime.now())

    async def until(self, holds: Callable[[], object], timeout: float = 5.0) -> None:
        """Wait for the event after which ``holds()`` is true."""
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(holds)


@asynccontextmanager
async def serve(
    engines: Sequence[FakeEngine],
    *,
    policy: str = "passthrough",
    keys: Sequence[str] = (),
    config: SchedulerConfig | None = None,
    poll_s: float = 0.05,
    specs: Sequence[BackendSpec] | None = None,
    policy_settings: Any = None,
    check: bool = True,
    keep_warm: bool = False,
    **options: Any,
) -> AsyncGenerator[Served]:
    """A data plane before ``engines``; everything is checked and settled when the block is left."""
    scheduler = Scheduler(policy=make_policy(policy, policy_settings), config=config or SchedulerConfig())
    runtime = Runtime(scheduler, poll_s=poll_s, keep_warm=keep_warm)
    changed = asyncio.Condition()
    loop = asyncio.get_running_loop()
    told: set[asyncio.Task[None]] = set()

    async def tell() -> None:
        async with changed:
            changed.notify_all()

    events: list[Event] = []
    decisions: list[Decision] = []

    def observe(event: Event, decided: Sequence[Decision]) -> None:
        if check:
            scheduler.check_invariants()
        events.append(event)
        decisions.extend(decided)
        task = loop.create_task(tell())
        told.add(task)
        task.add_done_callback(told.discard)

    runtime.observe(observe)
    for spec in specs if specs is not None else [BackendSpec(url=engine.url) for engine in engines]:
        runtime.add_backend(spec)
    async with runtime:
        app = make_app([Proxy(runtime, Keys(keys), **options)])
        async with (
            start_server(app) as url,
            aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=10)) as client,
        ):
            served = Served(url, runtime, client, events, decisions, changed)
            yield served
    assert not runtime.calls
