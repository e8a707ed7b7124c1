"""Prompts that are sent again so that engines keep what they hold of them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from thunder_server.backend_spec import BackendSpec
from thunder_server.core.policies import PhaseSettings
from thunder_server.telemetry import Telemetry
from thunder_server.warmth import one_token

from .fake_engine import FakeEngine, Reply, Seen
from .harness import CHAT, Served, serve


def prompt(name: str) -> dict[str, Any]:
    """400 tokens of the 1,000 that the engine has."""
    return {"model": "m", "messages": [{"role": "user", "content": name + " x" * 800}]}


async def sized(seen: Seen, reply: Reply) -> None:
    usage = {"prompt_tokens": 400, "completion_tokens": 1, "total_tokens": 401}
    message = {"role": "assistant", "content": "yes"}
    await reply.json({"choices": [{"index": 0, "message": message}], "usage": usage})


@asynccontextmanager
async def crowded(**options: Any) -> AsyncGenerator[tuple[FakeEngine, Served]]:
    """An engine that is about full: `old` acts, and what `gone` has left was used after it."""
    async with FakeEngine(blocks=64) as engine:
        engine.answer = sized
        spec = BackendSpec(url=engine.url, api_key="engine-key")
        settings = PhaseSettings(keep_warm=True)
        async with serve(
            [], specs=[spec], policy="phase", policy_settings=settings, keep_warm=True, **options
        ) as served:
            yield engine, served


async def leave_behind(served: Served) -> None:
    await served.chat(prompt("gone"), "gone", X_Thunder_Final="true")


def samples(served: Served) -> dict[str, float]:
    text, _ = Telemetry(served.runtime, "phase").scrape("text/plain")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if "touches" in sample.name or "held" in sample.name
    }


async def test_the_latest_prompt_is_sent_again_for_one_token_before_a_newcomer_s() -> None:
    async with crowded() as (engine, served):
        body = {**prompt("old"), "stream": False, "max_completion_tokens": 50, "n": 2, "temperature": 0.5}
        theirs = {"X_Session_ID": "s", "Authorization": "Bearer client", "X_Thunder_Priority": "0"}
        await served.chat(body, "old", **theirs)
        await leave_behind(served)
        status, _, answer = await served.chat(prompt("new"), "new")
        assert (status, answer["usage"]["prompt_tokens"]) == (200, 400)
        await engine.arrived(4)
        again = next(seen for seen in engine.seen[2:] if "old" in seen.body.decode())
        assert again.json == {**prompt("old"), "temperature": 0.5, "max_tokens": 1}
        assert (again.path, again.header("X-Session-ID")) == (CHAT, "s")
        assert again.header("Authorization") == "Bearer engine-key"
        assert not [name for name, _ in again.headers if name.lower().startswith("x-thunder")]
        view = served.view("old")
        assert (view["calls"]["total"], view["tokens"]["prompt"], view["phase"]) == (1, 400, "acting")


async def test_what_a_client_compressed_is_sent_plain() -> None:
    async with crowded() as (engine, served):
        raw = gzip.compress(json.dumps(prompt("old")).encode())
        headers = {"Content-Encoding": "gzip", "X-Thunder-Program-Id": "old"}
        async with served.client.post(served.url + CHAT, data=raw, headers=headers) as answer:
            assert answer.status == 200
        await leave_behind(served)
        await served.chat(prompt("new"), "new")
        await engine.arrived(4)
        again = next(seen for seen in engine.seen[2:] if b"new" not in seen.body)
        assert again.json == {**prompt("old"), "max_tokens": 1}
        assert again.header("Content-Encoding") is None


async def test_prompts_of_programs_that_have_ended_are_let_go() -> None:
    async with crowded() as (_, served):
        await served.chat(prompt("old"), "old")
        assert samples(served)["thunder_prompts_held_bytes"] == len(json.dumps(prompt("old")))
        await served.chat(prompt("old"), "old", X_Thunder_Final="true")
        await served.chat(prompt("nobody's"))
        assert samples(served)["thunder_prompts_held_bytes"] == 0


async def refuse(seen: Seen, reply: Reply) -> None:
    await reply.json({"error": {"message": "no"}}, status=500)


async def die(seen: Seen, reply: Reply) -> None:
    reply.die()


@pytest.mark.parametrize("failing", [refuse, die])
async def test_nobody_suffers_where_it_fails(failing: Any) -> None:
    async def answer(seen: Seen, reply: Reply) -> None:
        await (failing if seen.json.get("max_tokens") == 1 else sized)(seen, reply)

    async with crowded() as (engine, served):
        engine.answer = answer
        await served.chat(prompt("old"), "old")
        await leave_behind(served)
        assert (await served.chat(prompt("new"), "new"))[0] == 200
        warmth = served.runtime.warmth
        assert warmth is not None
        async with asyncio.timeout(5):
            while not warmth.failed:
                await asyncio.sleep(0)
        assert samples(served)["thunder_touches_failed_total"] == 1
        assert samples(served)["thunder_touches_total"] == 1
        assert (await served.chat(prompt("old"), "old"))[0] == 200


async def test_an_engine_that_hangs_holds_up_nobody_not_even_the_end() -> None:
    async def answer(seen: Seen, reply: Reply) -> None:
        if seen.json.get("max_tokens") == 1:
            await seen.gone.wait()
        else:
            await sized(seen, reply)

    async with crowded() as (engine, served):
        engine.answer = answer
        await served.chat(prompt("old"), "old")
        await leave_behind(served)
        assert (await served.chat(prompt("new"), "new"))[0] == 200
        await engine.arrived(4)
    (again,) = [seen for seen in engine.seen if seen.json.get("max_tokens") == 1]
    async with asyncio.timeout(5):
        await again.gone.wait()


@pytest.mark.parametrize(
    ("path", "sent", "again"),
    [
        (
            "/v1/chat/completions",
            {"messages": [], "tools": [], "stream": True},
            {"messages": [], "tools": []},
        ),
        ("/v1/completions", {"prompt": "p", "echo": True, "logprobs": 5, "max_tokens": 9}, {"prompt": "p"}),
        ("/v1/messages", {"system": "s", "messages": [], "max_tokens": 9}, {"system": "s", "messages": []}),
        ("/v1/responses", {"input": "i", "background": True, "store": True}, {"input": "i"}),
    ],
)
def test_the_prompt_stays_as_it_is_in_every_api(
    path: str, sent: dict[str, Any], again: dict[str, Any]
) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    assert json.loads(one_token(path, json.dumps(sent).encode())) == {**again, limit: 1}
