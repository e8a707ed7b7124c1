"""Engines hang, die and come back under load: no agent loses its work and nothing stays behind."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from .processes import emulated, served

pytestmark = pytest.mark.slow

AGENTS = 30
TURNS = 5
ENGINE = ("--model", "m", "--speed", "20", "--kv-tokens", "30000")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Agent:
    """Does one piece of work after another, each a program of some turns.

    Asks for every answer again until it is whole, as a client with retries does.
    """

    def __init__(self, url: str, http: aiohttp.ClientSession, number: int) -> None:
        self.root = url
        self.http = http
        self.number = number
        self.stream = number % 2 == 0
        self.program = ""
        self.messages: list[dict[str, str]] = []
        self.turns = 0

    async def run(self, over: asyncio.Event) -> None:
        works = 0
        while not over.is_set():
            works += 1
            self.program = f"agent-{self.number}-{works}"
            self.messages = [{"role": "user", "content": self.program + " context" * 1500}]
            for _ in range(TURNS):
                while not await self.ask():
                    await asyncio.sleep(0.2)  # a client's back-off
                self.turns += 1
                self.messages.append({"role": "assistant", "content": "yes"})
                self.messages.append({"role": "user", "content": "more " * 50})
            async with self.http.delete(f"{self.root}/thunder/v1/programs/{self.program}") as answer:
                assert answer.status == 200

    async def ask(self) -> bool:
        url = f"{self.root}/p/{self.program}/v1/chat/completions"
        body = {"model": "m", "messages": self.messages, "max_tokens": 100, "stream": self.stream}
        async with self.http.post(url, json=body) as answer:
            said = await answer.text()
        if answer.status != 200:
            assert answer.status in (502, 503), said
            return False
        if not self.stream or said.endswith("data: [DONE]\n\n"):
            return True
        # A stream that broke says so, once, and does not pretend to be whole.
        assert said.count('"error"') == 1
        assert "[DONE]" not in said
        return False


async def until(holds: Callable[[], Awaitable[bool]], within: float) -> None:
    async with asyncio.timeout(within):
        while not await holds():
            await asyncio.sleep(0.1)


async def test_engines_that_hang_die_and_come_back_cost_no_agent_its_work() -> None:
    hanging_port, dying_port = free_port(), free_port()
    hanging_id, dying_id = f"127.0.0.1:{hanging_port}", f"127.0.0.1:{dying_port}"
    with (
        emulated(hanging_port, *ENGINE) as hanging,
        emulated(dying_port, *ENGINE) as dying,
        served(
            *("--backend", f"http://{hanging_id}", f"http://{dying_id}"),
            *("--policy", "paper", "--paper-interval", "0.5", "--auto-lease", "4"),
        ) as server,
    ):
        async with aiohttp.ClientSession() as http:

            async def asked(path: str) -> list[dict[str, Any]]:
                async with http.get(f"{server.url}/thunder/v1/{path}") as answer:
                    return (await answer.json())[path]

            def healthy(backend_id: str, *, is_so: bool = True) -> Callable[[], Awaitable[bool]]:
                async def holds() -> bool:
                    return {b["id"]: b["healthy"] for b in await asked("backends")}[backend_id] is is_so

                return holds

            agents = [Agent(server.url, http, number) for number in range(AGENTS)]

            async def work_goes_on() -> None:
                goal = sum(agent.turns for agent in agents) + 2 * AGENTS

                async def holds() -> bool:
                    return sum(agent.turns for agent in agents) >= goal

                await until(holds, 60)

            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for agent in agents:
                    group.create_task(agent.run(over))
                await work_goes_on()
                hanging.send_signal(signal.SIGSTOP)
                await until(healthy(hanging_id, is_so=False), 10)
                hanging.send_signal(signal.SIGCONT)
                await until(healthy(hanging_id), 15)
                await work_goes_on()
                dying.kill()
                await until(healthy(dying_id, is_so=False), 10)
                await work_goes_on()
                with emulated(dying_port, *ENGINE):
                    await until(healthy(dying_id), 30)
                    await work_goes_on()
                    over.set()

            async def nothing_left() -> bool:
                programs, backends = await asked("programs"), await asked("backends")
                return all(
                    program["status"] == "terminated" and not program["calls"]["running"]
                    for program in programs
                ) and not any(backend["used_tokens"] or backend["active_programs"] for backend in backends)

            await until(nothing_left, 30)
        assert server.stop(signal.SIGTERM) == 0
