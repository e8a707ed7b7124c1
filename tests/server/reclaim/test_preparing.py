"""Environments on a real Docker engine: ready before their turn, asleep meanwhile, gone in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.docker_engine import IMAGE, Engine
from tests.server.http.fake_engine import FakeEngine, Reply, Seen, plain_answer
from tests.server.http.whole import PROGRAMS, Whole, whole

pytestmark = [pytest.mark.docker, pytest.mark.slow]

SANDBOX = {"image": IMAGE, "command": ["sleep", "1000"], "setup": ["echo ready > /prepared"]}


async def environment(server: Whole, program_id: str, wait_s: float = 30.0) -> dict[str, Any]:
    status, answer = await server.ask("GET", f"{PROGRAMS}/{program_id}/environment?wait_s={wait_s}")
    assert status == 200
    return answer


async def until_state(server: Whole, program_id: str, *states: str) -> dict[str, Any]:
    """Where the environment stands once it is in one of these states."""

    def state() -> str | None:
        program = server.runtime.scheduler.program(program_id)
        assert program is not None
        return program.environment.state.value if program.environment else None

    await server.until(lambda: state() in states, 60)
    return await environment(server, program_id, 0)


async def until_reclaimed(server: Whole, program_id: str) -> None:
    program = server.runtime.scheduler.program(program_id)
    assert program is not None
    held = server.runtime.scheduler.ledger.holdings.of(program)
    await server.until(lambda: all(holding.state.value == "reclaimed" for holding in held), 60)


class Slow:
    """An engine whose answers wait until they are let go."""

    def __init__(self, engine: FakeEngine) -> None:
        self.go = asyncio.Event()
        engine.answer = self._answer

    async def _answer(self, seen: Seen, reply: Reply) -> None:
        await self.go.wait()
        await plain_answer(seen, reply)


async def test_it_is_ready_before_its_program_has_its_turn(engine: Engine) -> None:
    first, second = engine.name("first"), engine.name("second")
    async with FakeEngine() as model, whole([model], policy="cap", cap=1) as server:
        slow = Slow(model)
        holding = server.call(first)
        await server.until(
            lambda: len(model.seen) > 0 and server.runtime.scheduler.program(first).running == 1
        )
        await server.ask("PUT", f"{PROGRAMS}/{second}", {"environment": SANDBOX})
        waiting = server.call(second)
        ready = await until_state(server, second, "ready", "failed")
        assert ready["state"] == "ready", ready["reason"]
        assert (await server.program(second))["status"] == "paused", "its turn is still to come"
        made = engine.api.exec_create(ready["container_id"], ["cat", "/prepared"])["Id"]
        assert engine.api.exec_start(made) == b"ready\n"
        slow.go.set()
        await holding
        await server.ask("DELETE", f"{PROGRAMS}/{first}")
        assert (await waiting)[0] == 200
        counters = server.runtime.scheduler.counters
        assert (counters.environments_prepared, counters.prepared_exposed_s) == (1, 0.0)
        await server.ask("DELETE", f"{PROGRAMS}/{second}")
        await until_reclaimed(server, second)
        assert not engine.exists("container", ready["container_id"])


async def test_it_sleeps_while_its_program_is_paused_for_long(engine: Engine) -> None:
    names = [engine.name(name) for name in ("holder", "next", "sleeper")]
    async with FakeEngine() as model, whole([model], policy="cap", cap=1, hibernate_after=0.3) as server:
        slow = Slow(model)
        await server.ask("PUT", f"{PROGRAMS}/{names[2]}", {"environment": SANDBOX})
        ready = await environment(server, names[2])
        assert ready["state"] == "ready", ready["reason"]
        calls = []
        for number, name in enumerate(names, 1):
            calls.append(server.call(name))
            await server.until(lambda number=number: len(server.runtime.calls) == number)
        await until_state(server, names[2], "hibernated")
        container = ready["container_id"]
        assert engine.api.inspect_container(container)["State"]["Paused"]
        slow.go.set()
        for name, call in zip(names, calls, strict=True):
            assert (await call)[0] == 200
            if name == names[2]:
                assert not engine.api.inspect_container(container)["State"]["Paused"]
            await server.ask("DELETE", f"{PROGRAMS}/{name}")
        await until_reclaimed(server, names[2])
        assert not engine.exists("container", container)


async def test_what_cannot_be_prepared_says_why_and_leaves_nothing(engine: Engine) -> None:
    program = engine.name("p")
    async with FakeEngine() as model, whole([model]) as server:
        spec = {**SANDBOX, "setup": ["echo broken >&2; exit 3"]}
        await server.ask("PUT", f"{PROGRAMS}/{program}", {"environment": spec})
        failed = await environment(server, program)
        assert failed["state"] == "failed"
        assert "broken" in failed["reason"]
        assert engine.of_program(program) == []
        await server.ask("DELETE", f"{PROGRAMS}/{program}")
        await until_reclaimed(server, program)


async def test_one_that_is_abandoned_leaves_nothing(engine: Engine) -> None:
    program = engine.name("p")
    async with FakeEngine() as model, whole([model]) as server:
        spec = {**SANDBOX, "setup": ["sleep 1000"]}
        await server.ask("PUT", f"{PROGRAMS}/{program}", {"environment": spec})
        await until_state(server, program, "preparing")
        async with asyncio.timeout(60):
            while not engine.of_program(program):  # it is being set up
                await asyncio.sleep(0.05)
        await server.ask("DELETE", f"{PROGRAMS}/{program}?outcome=dropped")
        await until_reclaimed(server, program)
        assert engine.of_program(program) == []
