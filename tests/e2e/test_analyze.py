"""From a running server to a verdict: its event stream, captured as users do it, and analyzed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from ..server.http.fake_engine import FakeEngine
from .processes import served, thunder

pytestmark = pytest.mark.slow
TOLD = 3


def test_a_server_that_is_not_there_is_named() -> None:
    result = thunder("analyze", "--server", "http://127.0.0.1:9")
    assert (result.returncode, "http://127.0.0.1:9/thunder/v1/stream does not answer" in result.stderr) == (
        1,
        True,
    )
    wrong = thunder("analyze", "--server", "nonsense")
    assert (wrong.returncode, "--server" in wrong.stderr) == (2, True)


async def test_what_a_server_streams_can_be_analyzed(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        with served("--backend", engine.url, "--policy", "passthrough") as server:
            async with http.get(server.url + "/thunder/v1/stream") as stream:
                for number in range(TOLD):
                    body = {"model": "m", "messages": [{"role": "user", "content": f"hello {number}"}]}
                    headers = {"X-Thunder-Program-Id": "agent"}
                    async with http.post(
                        server.url + "/v1/chat/completions", json=body, headers=headers
                    ) as answer:
                        assert answer.status == 200
                # What `curl -N` would have written by now.
                content = b""
                async with asyncio.timeout(10):
                    while content.count(b'"call.finished"') < TOLD:
                        content += await stream.content.readany()
            capture.write_bytes(content)
            asked = thunder("analyze", "--server", server.url, "--json")
    result = thunder("analyze", str(capture), "--json")
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    assert (value["source"], value["programs"], value["calls"]) == ("event stream", 1, TOLD)
    assert value["verdict"] == "do not bother"
    told = json.loads(asked.stdout)
    same = ("programs", "calls", "prompt_tokens", "verdict")
    assert {name: told[name] for name in same} == {name: value[name] for name in same}
    simulated = thunder("simulate", "--trace", str(capture), "--policy", "phase", "--json")
    assert json.loads(simulated.stdout)["rows"][0]["programs"] == 1, simulated.stderr
