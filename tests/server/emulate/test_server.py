"""The stand-in engine as its clients see it, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from thunder_server.emulate import EmulatedServer, EngineSettings

FAST = EngineSettings(model="tiny", speed=1000)


@pytest.fixture
async def server() -> AsyncIterator[EmulatedServer]:
    async with EmulatedServer(FAST) as server:
        yield server


@pytest.fixture
async def http(server: EmulatedServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


def _chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


async def _stream(http: aiohttp.ClientSession, path: str, body: dict[str, object]) -> list[str]:
    async with http.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = await response.text()
    events = text.split("\n\n")
    assert events.pop() == ""
    return [event.removeprefix("data: ") for event in events]


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


async def test_a_chat_is_answered_with_usage(http):
    async with http.post("/v1/chat/completions", json=_chat("hello", max_tokens=5)) as response:
        body = await response.json()
    (choice,) = body["choices"]
    assert body["object"] == "chat.completion"
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) == 20
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_the_stream_says_what_the_whole_answer_says(http):
    body = _chat("hello", max_tokens=50)
    async with http.post("/v1/chat/completions", json=body) as response:
        whole = await response.json()
    events = await _stream(http, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 50
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count("length") == 1


async def test_the_next_turn_finds_its_prefix_and_the_answer_in_the_cache(http):
    messages = [{"role": "user", "content": "x" * 4000}]
    async with http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 100}) as response:
        first = await response.json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
    async with http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}) as response:
        usage = (await response.json())["usage"]
    held = first["usage"]["total_tokens"] - 1  # the last token was sampled, never computed
    assert usage["prompt_tokens_details"]["cached_tokens"] == held // 16 * 16


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_its_request(stream):
    settings = EngineSettings(model="tiny")
    async with EmulatedServer(settings) as server, aiohttp.ClientSession(server.url) as http:

        async def ask() -> None:
            async with http.post("/v1/chat/completions", json=_chat("x", stream=stream)) as response:
                await response.read()

        client = asyncio.create_task(ask())
        await _until(lambda: server.engine.counters.generation_tokens > 1)
        client.cancel()
        await _until(lambda: not server.engine.running and not server.engine.kv_usage)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("chat/completions", b"{", 400, "JSON"),
        ("chat/completions", b"[]", 400, "object"),
        ("chat/completions", b'{"messages": []}', 400, "messages"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": 3}]}', 400, "messages.0.content"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "max_tokens": 0}', 400, "max_tokens"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "max_tokens": 9000}', 400, "8192"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "n": 2}', 400, "n:"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "model": "other"}', 404, "other"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "stream_options": {}}', 400, "stream"),
        ("completions", b'{"prompt": ""}', 400, "empty"),
        ("completions", b'{"prompt": []}', 400, "prompt"),
        ("completions", b'{"prompt": [-1]}', 400, "token ids"),
        ("completions", b'{"prompt": [1, "a"]}', 400, "prompt"),
        ("completions", b'{"prompt": "a", "min_tokens": 5, "max_tokens": 4}', 400, "min_tokens"),
        ("nothing", b"{}", 404, "Not Found"),
    ],
)
async def test_refusals_are_openai_shaped_and_say_what_is_wrong(http, path, body, status, says):
    async with http.post(f"/v1/{path}", data=body) as response:
        answer = await response.json()
    assert response.status == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert says in answer["error"]["message"]
