"""ThunderAgent's clients find what they know."""

from __future__ import annotations

import asyncio

import pytest

from .fake_engine import FakeEngine, Reply, Seen
from .whole import PROGRAMS, whole


async def test_release_ends_a_program_and_is_harmless_again() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        await server.call(None, program_id="agent-1")
        for released in (True, False):
            answer = await server.ask("POST", "/programs/release", {"program_id": "agent-1"})
            assert answer == (200, {"program_id": "agent-1", "released": released})
        assert (await server.program("agent-1"))["outcome"] == "success"
        assert await server.ask("POST", "/programs/release", {"program_id": "nobody"}) == (
            200,
            {"program_id": "nobody", "released": False},
        )
        assert "nobody" not in server.runtime.scheduler.programs
        assert len(engine.seen) == 1  # releases never reach an engine


@pytest.mark.parametrize(
    "body", [{}, {"program_id": ""}, {"program_id": 5}, {"program_id": None}, {"program_id": "a b"}]
)
async def test_a_release_without_a_program_is_refused(body: dict) -> None:
    async with whole() as server:
        status, answer = await server.ask("POST", "/programs/release", body)
        assert (status, answer["error"]["param"]) == (400, "program_id")


async def test_a_release_of_a_queued_program_lets_its_call_finish() -> None:
    async with FakeEngine() as engine, whole([engine], policy="cap", cap=1) as server:
        await server.call("first")
        waiting = server.call("second")
        await server.until(lambda: "second" in server.runtime.scheduler.programs)
        await server.ask("POST", "/programs/release", {"program_id": "second"})
        await server.ask("POST", "/programs/release", {"program_id": "first"})
        assert (await waiting)[0] == 200
        assert (await server.program("second"))["status"] == "terminated"


async def test_programs_have_their_names() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        hold = asyncio.Event()

        async def held(seen: Seen, reply: Reply) -> None:
            await hold.wait()
            await reply.json({"choices": []})

        await server.call("acting")
        engine.answer = held
        reasoning = server.call("reasoning")
        await engine.arrived(2)
        await server.ask("PUT", f"{PROGRAMS}/over")
        await server.ask("DELETE", f"{PROGRAMS}/over")
        status, programs = await server.ask("GET", "/programs")
        assert status == 200
        assert programs["acting"] == {
            "backend": engine.url,
            "context_len": 5,
            "total_tokens": 107,
            "step_count": 1,
            "status": "acting",
            "state": "active",
        }
        assert (programs["reasoning"]["status"], programs["reasoning"]["state"]) == ("reasoning", "active")
        assert programs["over"]["state"] == "terminated"

        status, health = await server.ask("GET", "/health")
        counts = {"programs_count": 2, "reasoning_count": 1, "acting_count": 1, "paused_count": 0}
        assert health.items() >= {"status": "ok", "backends": [engine.url], **counts}.items()
        assert health["per_backend"][engine.url] == {
            "total": 2,
            "reasoning": 1,
            "acting": 1,
            "paused": 0,
            "marked_for_pause": 0,
        }
        hold.set()
        await reasoning
