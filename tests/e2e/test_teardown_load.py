"""Tearing down a hundred containers while calls stream: the data plane goes on."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from tests.docker_engine import Engine
from tests.e2e.processes import served
from tests.server.http.fake_engine import FakeEngine, Reply, Seen, chunk_of

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CONTAINERS = 100
RUNNING = 25
CLIENTS = 8
CHUNKS = 20


async def streams(seen: Seen, reply: Reply) -> None:
    """A word every few milliseconds."""
    await reply.stream_head()
    for index in range(CHUNKS):
        await reply.chunk(chunk_of(str(index)) + b"\n\n")
        await asyncio.sleep(0.005)
    await reply.chunk(b"data: [DONE]\n\n")
    await reply.end()


class Listener:
    """Clients that call again and again, and when chunks came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.at: list[float] = []
        self.over = False

    async def listen(self, http: aiohttp.ClientSession, program: str) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"X-Thunder-Program-Id": program}
        while not self.over:
            async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                count = 0
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        self.at.append(time.monotonic())
                        count += 1
                assert count >= CHUNKS

    def longest_silence(self, since: float, until: float) -> float:
        """Between two chunks, whoever's."""
        times = [since, *(at for at in self.at if since <= at <= until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@pytest.mark.timeout(600)
async def test_calls_stream_on_while_a_hundred_containers_go(engine: Engine) -> None:
    program = f"p-{engine.mark}"
    labels = {"thunder-test": engine.mark, "thunder.program": program}
    with ThreadPoolExecutor(8) as pool:  # some run, which costs more both ways
        list(
            pool.map(lambda index: engine.container(labels=labels, start=index < RUNNING), range(CONTAINERS))
        )
    async with FakeEngine() as backend, aiohttp.ClientSession() as http, asyncio.timeout(500):
        backend.answer = streams
        with served("--backend", backend.url) as server:
            listener = Listener(server.url)
            async with asyncio.TaskGroup() as clients:
                for index in range(CLIENTS):
                    clients.create_task(listener.listen(http, f"caller-{index}"))
                while len(listener.at) < CLIENTS * CHUNKS:
                    await asyncio.sleep(0.01)
                await declare(http, server.url, program, engine.of_program(program))
                began = time.monotonic()
                async with http.delete(f"{server.url}/thunder/v1/programs/{program}") as answer:
                    assert answer.status == 200
                while await asyncio.to_thread(engine.of_program, program):
                    await asyncio.sleep(0.1)
                ended = time.monotonic()
                listener.over = True
    # Who waits for the engine on the event loop is silent for as long as that takes.
    assert listener.longest_silence(began, ended) < (ended - began) / 10


async def declare(http: aiohttp.ClientSession, url: str, program: str, refs: list[str]) -> None:
    events = [
        {
            "program_id": program,
            "seq": index,
            "at": 0.0,
            "type": "resource.declared",
            "kind": "container",
            "ref": ref,
            "keep": False,
        }
        for index, ref in enumerate(refs, 1)
    ]
    async with http.post(f"{url}/thunder/v1/events", json={"emitter": "e" * 32, "events": events}) as answer:
        assert (await answer.json())["errors"] == []
