"""A whole server on a real port, as its settings make it, and a client for its JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from thunder_server.backend_spec import BackendSpec
from thunder_server.runtime import Runtime
from thunder_server.service import serving
from thunder_server.settings import Settings

from .fake_engine import FakeEngine

PROGRAMS = "/thunder/v1/programs"
EVENTS = "/thunder/v1/events"
BACKENDS = "/thunder/v1/backends"
CHAT = "/v1/chat/completions"
EMITTER = "0123456789abcdef" * 2


@dataclass
class Whole:
    url: str
    runtime: Runtime
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Status and JSON of one request. ``body`` bytes go as they are."""
        if isinstance(body, bytes):
            options["data"] = body
        elif body is not None:
            options["json"] = body
        async with self.http.request(method, self.url + path, **options) as answer:
            value = await answer.json(content_type=None)
            if answer.status >= 400:
                # Whatever goes wrong is said in one shape.
                assert set(value["error"]) == {"message", "type", "code", "param"}, value
                assert value["error"]["message"]
            return answer.status, value

    async def report(self, *events: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self.ask("POST", EVENTS, {"emitter": EMITTER, "events": list(events)})
        assert status == 200
        return answer

    async def program(self, program_id: str) -> dict[str, Any]:
        status, program = await self.ask("GET", f"{PROGRAMS}/{program_id}")
        assert status == 200
        return program

    def call(self, program: str | None = None, /, **body: Any) -> asyncio.Task[tuple[int, Any]]:
        """A chat call under way."""
        headers = {} if program is None else {"X-Thunder-Program-Id": program}
        content = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **body}
        return asyncio.create_task(self.ask("POST", CHAT, content, headers=headers))

    async def until(self, holds: Callable[[], object], timeout: float = 5.0) -> None:
        """Wait for the event after which ``holds()`` is true."""
        happened = asyncio.Event()
        end = self.runtime.observe(lambda event, decided: happened.set())
        try:
            async with asyncio.timeout(timeout):
                while not holds():
                    await happened.wait()
                    happened.clear()
        finally:
            end()


@asynccontextmanager
async def whole(engines: Sequence[FakeEngine] = (), **settings: Any) -> AsyncGenerator[Whole]:
    """A server with ``settings`` in front of ``engines``, all of them known to be healthy."""
    backends = tuple(BackendSpec(url=engine.url) for engine in engines)
    made = Settings(**{"backend": backends, "port": 0, "poll": 0.05, **settings})
    async with (
        serving(made) as (url, runtime),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
    ):
        server = Whole(url, runtime, http)
        await server.until(lambda: len(runtime.healthy_backends) == len(engines))
        yield server
        runtime.scheduler.check_invariants()
