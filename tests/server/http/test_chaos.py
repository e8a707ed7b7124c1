"""Everything at once: engines that fail in every way, clients that leave at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random

import aiohttp
import pytest

from thunder_server.core.config import SchedulerConfig
from thunder_server.core.events import Outcome, ProgramClosed
from thunder_server.core.policies import CapSettings

from .fake_engine import FakeEngine, Reply, Seen, chunk_of, engines, plain_answer, usage_chunk
from .harness import CHAT, HELLO, STREAM, Served, serve


class Moody:
    """An engine's script that is in a random mood for every call."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def __call__(self, seen: Seen, reply: Reply) -> None:
        mood = self._chance.choice(
            [self.fine, self.fine, self.fine, self.refuses, self.dies, self.breaks, self.odd]
        )
        await asyncio.sleep(self._chance.random() * 0.02)
        await mood(seen, reply)

    async def fine(self, seen: Seen, reply: Reply) -> None:
        await plain_answer(seen, reply)

    async def refuses(self, seen: Seen, reply: Reply) -> None:
        await reply.json({"error": {"message": "no"}}, status=self._chance.choice([400, 429, 500, 503]))

    async def dies(self, seen: Seen, reply: Reply) -> None:
        reply.die()

    async def breaks(self, seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n" + b'data: {"cho')
        reply.die()

    async def odd(self, seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\r\n\r\n" + usage_chunk({"prompt_tokens": None}) + b"\r\n\r\n")
        await asyncio.sleep(self._chance.random() * 0.05)
        await reply.end()


async def client(served: Served, chance: random.Random, calls: int) -> None:
    for _ in range(calls):
        headers = {}
        if chance.random() < 0.9:
            headers["X-Thunder-Program-Id"] = f"p{chance.randrange(12)}"
        if chance.random() < 0.2:
            headers["X-Thunder-Retry"] = "1"
        if chance.random() < 0.1:
            headers["X-Thunder-Final"] = "true"
        if chance.random() < 0.1:
            headers["X-Thunder-Max-Wait"] = "0.01"
        body = STREAM if chance.random() < 0.5 else HELLO
        patience = 0.03 if chance.random() < 0.25 else 5.0
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(patience):
                async with served.client.post(served.url + CHAT, json=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.status in (200, 400, 409, 429, 500, 502, 503, 504)
        if chance.random() < 0.2:
            outcome = chance.choice([Outcome.SUCCESS, Outcome.DROPPED])
            program_id = f"p{chance.randrange(12)}"
            served.runtime.post(
                ProgramClosed(at=served.runtime.now(), program_id=program_id, outcome=outcome)
            )


async def killer(served: Served, victims: list[FakeEngine], chance: random.Random) -> None:
    while True:
        await asyncio.sleep(0.05 + 0.1 * chance.random())
        victim = chance.choice(victims)
        port = victim.port
        await victim.stop()
        await asyncio.sleep(0.05 * chance.random())
        await victim.start(port)


@pytest.mark.parametrize("policy", ["cap", "paper", "passthrough", "phase"])
async def test_whatever_happens_everything_settles(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(policy)
    config = SchedulerConfig(auto_lease_s=0.3, max_wait_s=1.0, no_backend_after_s=0.3)
    settings = CapSettings(programs=2) if policy == "cap" else None
    async with (
        engines(3, blocks=30) as replicas,
        serve(
            replicas, policy=policy, policy_settings=settings, config=config, heartbeat_s=0.02, poll_s=0.02
        ) as served,
    ):
        for replica in replicas:
            replica.answer = Moody(chance)
        killing = asyncio.create_task(killer(served, replicas, chance))
        async with asyncio.timeout(30):
            await asyncio.gather(*(client(served, random.Random(f"{policy} {n}"), 10) for n in range(14)))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        scheduler = served.runtime.scheduler
        await served.until(lambda: not served.runtime.calls)
        assert scheduler.waiting_calls == 0
        await served.until(
            lambda: all(program.outcome is not None for program in scheduler.programs.values())
        )
        for program_id in scheduler.programs:
            view = served.view(program_id)
            assert (view["phase"], view["calls"]["running"], view["calls"]["waiting"]) == ("acting", 0, 0)
            assert view["tokens"]["context"] == 0
        ours = [record for record in caplog.records if record.name.startswith(("thunder", "aiohttp"))]
        assert not [record for record in ours if record.levelname == "ERROR"]
