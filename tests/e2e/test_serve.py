"""``thunder serve`` as a process: how it starts, is configured, and ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from ..server.http.fake_engine import FakeEngine, Reply, Seen, plain_answer
from .processes import served, thunder

pytestmark = pytest.mark.slow
NOWHERE = "http://127.0.0.1:9"
CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_starts_without_engines_says_where_and_ends_when_told(number: signal.Signals) -> None:
    with served("--backend", NOWHERE + "/v1", "http://127.0.0.1:10") as server:
        assert server.greeting.startswith("thunder serve: ready at http://127.0.0.1:")
        assert "policy phase" in server.greeting
        assert f"backends: {NOWHERE}, http://127.0.0.1:10" in server.greeting
        async with aiohttp.ClientSession() as http:
            async with http.get(server.url + "/healthz") as answer:
                assert answer.status == 200
            async with http.get(server.url + "/readyz") as answer:
                assert answer.status == 503
        assert server.stop(number) == 0


def test_a_terminal_that_lacks_letters_gets_the_others() -> None:
    with served("--backend", NOWHERE, PYTHONIOENCODING="ascii") as server:
        assert "ready at http://127.0.0.1:" in server.greeting
        listed = thunder("backends", "--server", server.url, PYTHONIOENCODING="ascii")
        assert (listed.returncode, listed.stderr) == (0, "")


async def test_running_calls_finish_before_it_ends() -> None:
    go = asyncio.Event()

    async def held(seen: Seen, reply: Reply) -> None:
        await go.wait()
        await plain_answer(seen, reply)

    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        engine.answer = held
        with served("--backend", engine.url) as server:

            async def call() -> int:
                async with http.post(server.url + "/v1/chat/completions", json=CALL) as answer:
                    await answer.read()
                    return answer.status

            running = asyncio.create_task(call())
            await engine.arrived(timeout=10)
            server.process.send_signal(signal.SIGTERM)
            # It is stopping once it says so; only then the engine answers.
            while True:
                async with http.get(server.url + "/readyz") as answer:
                    if (await answer.json())["status"] == "stopping":
                        break
            go.set()
            assert await running == 200
            assert await asyncio.to_thread(server.process.wait, 20) == 0


async def test_a_second_signal_cuts_what_still_runs() -> None:
    async def never(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        engine.answer = never
        with served("--backend", engine.url) as server:
            call = asyncio.create_task(http.post(server.url + "/v1/chat/completions", json=CALL))
            seen = await engine.arrived(timeout=10)
            server.process.send_signal(signal.SIGTERM)
            async with http.get(server.url + "/readyz"):
                server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 20) == 0
            await asyncio.wait_for(seen.gone.wait(), 5)
            async with await call as answer:
                assert answer.status == 503


def test_flags_variables_and_file_reach_it(tmp_path: Path) -> None:
    (tmp_path / "thunder.toml").write_text(f'backend = ["{NOWHERE}"]\npolicy = "passthrough"\ncap = 3\n')
    with served("--policy", "cap", "--config", str(tmp_path / "thunder.toml"), THUNDER_CAP="5") as server:
        assert "policy cap" in server.greeting


def test_a_taken_port_is_a_failure_not_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = thunder("serve", "--backend", NOWHERE, "--port", port)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--backend", "gpu:8000"],
            "thunder: --backend: 'gpu:8000' is no http:// or https:// URL; did you mean",
        ),
        (
            ["--backend", NOWHERE, "--policy", "stage"],
            "thunder: --policy: policy 'stage' is unknown",
        ),
        (["--backend", NOWHERE, "--config", "/nowhere.toml"], "thunder: --config: cannot read /nowhere.toml"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words: list[str], complaint: str) -> None:
    result = thunder("serve", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(complaint)
    assert result.stderr.count("\n") == 1
