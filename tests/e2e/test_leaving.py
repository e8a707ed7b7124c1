"""Two thousand programs leave in every way there is; nothing of them remains once leases ran out."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from ..server.http.fake_engine import FakeEngine, Reply, Seen, plain_answer
from .processes import served

PROGRAMS = 2000
AT_ONCE = 100
SEED = 20260214
LEASE_S = 2.0


class Fleet:
    """Clients of one server, each of which leaves in its own way."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.http = http

    async def control(self, method: str, path: str, body: Any = None, **params: str) -> None:
        async with self.http.request(method, self.url + path, json=body, params=params) as answer:
            assert answer.status in (200, 201), await answer.text()

    @asynccontextmanager
    async def calling(self, program: str | None, **body: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        content = {"model": "m", "messages": [{"role": "user", "content": f"hello from {program}"}], **body}
        headers = {} if program is None else {"X-Thunder-Program-Id": program}
        async with self.http.post(self.url + "/v1/chat/completions", json=content, headers=headers) as answer:
            yield answer

    async def call(self, program: str | None, *allowed: int, **body: Any) -> None:
        async with self.calling(program, **body) as answer:
            await answer.read()
            assert answer.status in (200, *allowed), await answer.text()

    async def open(self, program: str) -> None:
        await self.control("PUT", f"/thunder/v1/programs/{program}", {"lease_s": LEASE_S})

    async def close(self, program: str, outcome: str = "success") -> None:
        await self.control("DELETE", f"/thunder/v1/programs/{program}", outcome=outcome)

    async def release(self, program: str) -> None:
        await self.control("POST", "/programs/release", {"program_id": program})

    async def report(self, program: str, seq: int, kind: str, **fields: Any) -> None:
        event = {"program_id": program, "seq": seq, "at": float(seq), "type": kind, "call_id": "c", **fields}
        await self.control("POST", "/thunder/v1/events", {"emitter": "e" * 32, "events": [event]})

    # --- ways to leave -----------------------------------------------------------------------------

    async def orderly(self, program: str) -> None:
        await self.open(program)
        await self.call(program)
        await self.report(program, 1, "acting.started", tool="bash")
        await self.report(program, 2, "acting.finished", ok=True)
        await self.call(program, stream=True)
        await self.close(program)

    async def never_released(self, program: str) -> None:
        await self.call(program)

    async def never_called(self, program: str) -> None:
        await self.open(program)

    async def left_in_a_tool(self, program: str) -> None:
        await self.open(program)
        await self.call(program)
        await self.report(program, 1, "acting.started", tool="sleep")

    async def released_twice(self, program: str) -> None:
        await self.call(program)
        await self.release(program)
        await self.release(program)
        await self.close(program, "error")

    async def called_after_release(self, program: str) -> None:
        await self.call(program)
        await self.release(program)
        await self.call(program)

    async def killed(self, program: str) -> None:
        """The client goes away with its call queued, in prefill, or in the middle of the stream."""
        call = asyncio.create_task(self.call(program, stream=True))
        await asyncio.wait([call], timeout=random.Random(program).uniform(0.0, 0.1))
        call.cancel()
        await asyncio.wait([call])

    async def killed_mid_stream(self, program: str) -> None:
        async with self.calling(program, stream=True) as answer:
            await answer.content.readany()
            answer.close()

    async def dropped_while_running(self, program: str) -> None:
        call = asyncio.create_task(self.call(program, 409))
        await asyncio.wait([call], timeout=0.02)
        await self.close(program, "dropped")
        await call

    async def closed_while_running(self, program: str) -> None:
        call = asyncio.create_task(self.call(program))
        await asyncio.wait([call], timeout=0.02)
        await self.close(program)
        await call

    async def untagged(self, program: str) -> None:
        await self.call(None)

    async def parallel_calls(self, program: str) -> None:
        await asyncio.gather(*(self.call(program, user=str(index)) for index in range(3)))
        await self.close(program, "error")

    async def at_a_failing_engine(self, program: str) -> None:
        await self.call(program, 502, 500, 429, user="fail")

    @property
    def ways(self) -> list[Callable[[str], Awaitable[None]]]:
        return [
            self.orderly,
            self.never_released,
            self.never_called,
            self.left_in_a_tool,
            self.released_twice,
            self.called_after_release,
            self.killed,
            self.killed_mid_stream,
            self.dropped_while_running,
            self.closed_while_running,
            self.untagged,
            self.parallel_calls,
            self.at_a_failing_engine,
        ]


class Answers:
    """An engine's: they take their time, and fail in three ways where they are told to."""

    def __init__(self) -> None:
        self.under_way = 0

    async def __call__(self, seen: Seen, reply: Reply) -> None:
        dice = random.Random(seen.body)
        self.under_way += 1
        try:
            await asyncio.sleep(dice.uniform(0, 0.05))
            if seen.json.get("user") != "fail":
                await plain_answer(seen, reply)
                return
            match dice.randrange(3):
                case 0:
                    reply.die()
                case 1:
                    await reply.json({"error": {"message": "overloaded"}}, 429, retry_after="1")
                case 2:
                    await reply.json({"error": {"message": "oops"}}, 500)
        finally:
            self.under_way -= 1


class Living:
    """Which programs live, as the stream tells."""

    def __init__(self) -> None:
        self.now: set[tuple[str, int]] = set()
        self.opened = 0
        self._changed = asyncio.Condition()

    async def follow(self, answer: aiohttp.ClientResponse) -> None:
        while line := await answer.content.readline():
            if not line.startswith(b"data: "):
                continue
            told = json.loads(line.removeprefix(b"data: "))
            assert told["type"] != "stream.gap"
            async with self._changed:
                if told["type"] == "program.opened":
                    self.opened += 1
                    self.now.add((told["program_id"], told["generation"]))
                elif told["type"] == "program.terminated":
                    self.now.discard((told["program_id"], told["generation"]))
                self._changed.notify_all()

    async def none(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.now)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_remains_of_programs_however_they_left() -> None:
    dice = random.Random(SEED)
    async with FakeEngine(blocks=257) as one, FakeEngine(blocks=257) as two:
        one.answer = two.answer = answers = Answers()
        options = ("--auto-lease", str(LEASE_S), "--paper-interval", "0.5", "--max-wait", "60")
        with served("--backend", one.url, two.url, *options) as server:
            connector = aiohttp.TCPConnector(limit=0)
            patience = aiohttp.ClientTimeout(total=200)
            async with aiohttp.ClientSession(connector=connector, timeout=patience) as http:
                stream = await http.get(server.url + "/thunder/v1/stream")
                living = Living()
                follower = asyncio.create_task(living.follow(stream))
                fleet = Fleet(server.url, http)
                turn = asyncio.Semaphore(AT_ONCE)

                async def leave(program: str, way: Callable[[str], Awaitable[None]]) -> None:
                    async with turn:
                        await way(program)

                async with asyncio.timeout(200), asyncio.TaskGroup() as group:
                    for index in range(PROGRAMS):
                        group.create_task(leave(f"p{index}", dice.choice(fleet.ways)))
                async with asyncio.timeout(30):
                    await living.none()
                assert living.opened > PROGRAMS * 0.9
                assert answers.under_way == 0

                async with http.get(server.url + "/thunder/v1/programs") as answer:
                    programs = (await answer.json())["programs"]
                for program in programs:
                    calls = program["calls"]
                    assert program["status"] == "terminated"
                    assert program["phase"] == "acting"
                    assert (calls["running"], calls["waiting"], program["tokens"]["context"]) == (0, 0, 0)
                    assert (program["backend"], program["acting"]) == (None, [])
                assert {program["outcome"] for program in programs} == {
                    "success",
                    "error",
                    "dropped",
                    "lease_expired",
                }
                async with http.get(server.url + "/health") as answer:
                    assert (await answer.json())["programs_count"] == 0
                async with http.get(server.url + "/thunder/v1/backends") as answer:
                    for backend in (await answer.json())["backends"]:
                        assert (backend["active_programs"], backend["running"]) == (0, 0)
                async with http.get(server.url + "/metrics") as answer:
                    metrics = (await answer.text()).splitlines()
                for state in ("waiting", "running"):
                    assert f'thunder_calls{{state="{state}"}} 0.0' in metrics
                follower.cancel()
                stream.close()
