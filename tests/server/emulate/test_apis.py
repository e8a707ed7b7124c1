"""The stand-in engine through the official client, and through Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from thunder_server.emulate import EmulatedServer, EngineSettings


@pytest.fixture
async def server() -> AsyncIterator[EmulatedServer]:
    async with EmulatedServer(EngineSettings(model="tiny", speed=1000)) as server:
        yield server


@pytest.fixture
async def openai(server: EmulatedServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def http(server: EmulatedServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def test_the_official_client_chats(openai):
    messages = [{"role": "user", "content": "hello"}]
    whole = await openai.chat.completions.create(model="tiny", messages=messages, max_tokens=30)
    assert whole.usage.completion_tokens == 30
    stream = await openai.chat.completions.create(model="tiny", messages=messages, max_tokens=30, stream=True)
    said = [chunk.choices[0].delta.content async for chunk in stream]
    assert "".join(said) == whole.choices[0].message.content


async def test_the_official_client_understands_refusals(openai):
    with pytest.raises(BadRequestError, match="maximum context length is 8192"):
        await openai.completions.create(model="tiny", prompt="x" * 40_000)
    with pytest.raises(NotFoundError, match="does not exist"):
        await openai.completions.create(model="other", prompt="x")


async def test_responses_whole_and_streamed(openai):
    asked = {"model": "tiny", "instructions": "be brief", "input": "hello", "max_output_tokens": 20}
    whole = await openai.responses.create(**asked)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 20
    assert len(whole.output_text) == 80
    events = [event async for event in await openai.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.incomplete"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens


async def test_a_response_sent_back_is_found_in_the_cache(openai):
    items = [{"role": "user", "content": "x" * 2000}]
    first = await openai.responses.create(model="tiny", input=items)
    assert first.status == "completed"
    items += [
        {"role": "assistant", "content": [{"type": "output_text", "text": first.output_text}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    second = await openai.responses.create(model="tiny", input=items)
    held = first.usage.total_tokens - 1
    assert second.usage.input_tokens_details.cached_tokens == held // 16 * 16


async def test_messages_whole_and_streamed(http):
    body = {
        "model": "tiny",
        "max_tokens": 30,
        "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 400}]}],
    }
    async with http.post("/v1/messages/count_tokens", json=body) as response:
        counted = (await response.json())["input_tokens"]
    async with http.post("/v1/messages", json=body) as response:
        whole = await response.json()
    assert whole["stop_reason"] == "max_tokens"
    assert whole["usage"]["input_tokens"] == counted
    assert whole["usage"]["output_tokens"] == 30
    (block,) = whole["content"]

    async with http.post("/v1/messages", json=body | {"stream": True}) as response:
        lines = (await response.text()).split("\n\n")[:-1]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    assert [line.partition("\n")[0] for line in lines] == [f"event: {event['type']}" for event in events]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == block["text"]
    usage = events[0]["message"]["usage"]
    assert usage["cache_read_input_tokens"] == counted // 16 * 16
    assert usage["input_tokens"] == counted % 16
    assert events[-2]["usage"]["output_tokens"] == 30


async def test_a_stop_sequence_is_told(http):
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
    async with http.post("/v1/messages", json=body) as response:
        text = (await response.json())["content"][0]["text"]
    stop = text.split()[2]
    async with http.post("/v1/messages", json=body | {"stop_sequences": [stop]}) as response:
        stopped = await response.json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": [], "max_tokens": 1}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user"}], "max_tokens": 1, "model": "x"}, 404, "not_found_error", "`x`"),
    ],
)
async def test_messages_are_refused_in_their_own_shape(http, body, status, kind, says):
    async with http.post("/v1/messages", json=body) as response:
        refusal = await response.json()
    assert response.status == status
    assert refusal["type"] == "error"
    assert refusal["error"]["type"] == kind
    assert says in refusal["error"]["message"]
