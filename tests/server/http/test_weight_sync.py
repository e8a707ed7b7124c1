"""Trainers hold dispatch over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from .fake_engine import FakeEngine, Reply, Seen
from .whole import whole

PREFIXES = pytest.mark.parametrize("prefix", ["/thunder/v1", ""])


class Held:
    """An engine's answer that comes when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, seen: Seen, reply: Reply) -> None:
        await self.go.wait()
        await reply.json({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})


@PREFIXES
async def test_it_drains_holds_and_resumes(prefix: str) -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        engine.answer = held = Held()
        running = server.call("a")
        await engine.arrived(1)
        begun = asyncio.create_task(server.ask("POST", f"{prefix}/weight_sync/begin"))
        await server.until(lambda: server.runtime.scheduler.held)
        waiting = server.call("b")
        await server.until(lambda: server.runtime.scheduler.waiting_calls == 1)
        assert not begun.done()
        held.go.set()
        assert await begun == (200, {"drained": True})
        assert (await running)[0] == 200
        assert len(engine.seen) == 1
        assert await server.ask("POST", f"{prefix}/weight_sync/begin", {}) == (200, {"drained": True})
        assert await server.ask("POST", f"{prefix}/weight_sync/end") == (200, {"ended": True})
        assert (await waiting)[0] == 200
        assert await server.ask("POST", f"{prefix}/weight_sync/end") == (200, {"ended": False})


async def test_calls_that_outlast_the_time_are_left_alone() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        engine.answer = held = Held()
        running = server.call("a")
        await engine.arrived(1)
        body = {"timeout_s": 0.05, "watchdog_s": 60}
        assert await server.ask("POST", "/thunder/v1/weight_sync/begin", body) == (200, {"drained": False})
        held.go.set()
        assert (await running)[0] == 200
        await server.ask("POST", "/thunder/v1/weight_sync/end")


async def test_who_waits_for_the_drain_is_told_that_it_was_ended() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        engine.answer = held = Held()
        running = server.call("a")
        await engine.arrived(1)
        begun = asyncio.create_task(server.ask("POST", "/thunder/v1/weight_sync/begin"))
        await server.until(lambda: server.runtime.scheduler.held)
        await server.ask("POST", "/thunder/v1/weight_sync/end")
        assert await begun == (200, {"drained": False})
        held.go.set()
        assert (await running)[0] == 200


async def test_the_watchdog_lets_calls_go() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        await server.ask("POST", "/thunder/v1/weight_sync/begin", {"watchdog_s": 0.05})
        assert (await server.call("a"))[0] == 200


@pytest.mark.parametrize("body", [{"timeout_s": -1}, {"watchdog_s": 0}, {"timeout_s": "soon"}, b"[]"])
async def test_bad_input_holds_nothing(body: object) -> None:
    async with whole() as server:
        status, _ = await server.ask("POST", "/thunder/v1/weight_sync/begin", body)
        assert status == 400
        assert not server.runtime.scheduler.held


async def test_it_needs_the_key() -> None:
    async with whole(api_key=("secret",)) as server:
        for path in ("begin", "end"):
            assert (await server.ask("POST", f"/weight_sync/{path}"))[0] == 401
