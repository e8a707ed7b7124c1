"""The stand-in engine as its clients see it, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from thunder_server.emulate import EmulatedServer, EngineSettings
from thunder_server.emulate.refusals import refusals

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
async def server() -> AsyncIterator[EmulatedServer]:
    async with EmulatedServer(EngineSettings(model="tiny", speed=1000)) as server:
        yield server


@pytest.fixture
async def http(server: EmulatedServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


def _chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


async def _ask(http: aiohttp.ClientSession, path: str, body: dict[str, object]) -> dict:
    async with http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def _stream(http: aiohttp.ClientSession, path: str, body: dict[str, object]) -> list[dict]:
    """The chunks of a stream that ends as it should."""
    async with http.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


async def _metrics(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/metrics") as response:
        assert response.content_type == "text/plain"
        text = await response.text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    for sample in samples:
        assert sample.labels["engine"] == "0"
        assert sample.labels.get("model_name", "tiny") == "tiny"
    return {sample.name: sample.value for sample in samples if "finished_reason" not in sample.labels}


async def test_a_chat_is_answered_with_usage(http):
    body = await _ask(http, CHAT, _chat("hello", max_tokens=5))
    (choice,) = body["choices"]
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 20
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_says_what_the_whole_answer_says(http, path):
    body = {"max_tokens": 50} | ({"prompt": "hello"} if path == COMPLETIONS else _chat("hello"))
    whole = await _ask(http, path, body)
    *chunks, last = await _stream(http, path, body | {"stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 50
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        said = "".join(choice["delta"]["content"] for choice in choices)
        assert said == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]


async def test_a_stream_has_usage_only_where_it_was_asked_for(http):
    assert all("usage" not in chunk for chunk in await _stream(http, CHAT, _chat("hello", max_tokens=3)))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await _stream(http, CHAT, _chat("hello", max_tokens=3, stream_options=options))
    assert all(chunk["usage"] for chunk in chunks)


async def test_a_stream_comes_as_it_is_generated():
    async with (
        EmulatedServer(EngineSettings(model="tiny")) as server,
        aiohttp.ClientSession(server.url) as http,
        http.post(CHAT, json=_chat("hello", max_tokens=12, stream=True)) as response,
    ):
        events = [line async for line in response.content if line.startswith(b"data: {")]
    # The role and twelve tokens, 21 ms each; a busy machine may join some, but not most.
    assert 4 < len(events) <= 13


async def test_the_next_turn_finds_its_prefix_and_the_answer_in_the_cache(http):
    messages = [{"role": "user", "content": "x" * 4000}]
    first = await _ask(http, CHAT, {"messages": messages, "max_tokens": 100})
    messages += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
    usage = (await _ask(http, CHAT, {"messages": messages, "max_tokens": 1}))["usage"]
    held = first["usage"]["total_tokens"] - 1  # the last token was sampled, never computed
    assert usage["prompt_tokens_details"]["cached_tokens"] == held // 16 * 16


async def test_a_completion_sent_back_with_its_prompt_is_found_in_the_cache(http):
    prompt = "x" * 1001
    first = await _ask(http, COMPLETIONS, {"prompt": prompt, "max_tokens": 100})
    prompt += first["choices"][0]["text"]
    second = await _ask(http, COMPLETIONS, {"prompt": prompt + " and more", "max_tokens": 1})
    held = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == held // 16 * 16


async def test_another_cache_salt_is_another_cache(http):
    for salt, cached in ((None, 0), ("a", 0), ("a", 256), (None, 256)):
        body = {"prompt": "x" * 1028, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        usage = (await _ask(http, COMPLETIONS, body))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached


async def test_an_answer_ends_by_itself_at_a_stop_or_at_the_limit(http):
    natural = (await _ask(http, CHAT, _chat("hello")))["choices"][0]
    assert natural["finish_reason"] == "stop"
    text = natural["message"]["content"]
    stop = text.split()[3]
    stopped = await _ask(http, CHAT, _chat("hello", stop=["never said", stop]))
    choice = stopped["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]
    chunks = await _stream(http, CHAT, _chat("hello", stop=stop))
    said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert said == choice["message"]["content"]
    exact = await _ask(http, CHAT, _chat("hello", max_completion_tokens=700, ignore_eos=True))
    assert exact["usage"]["completion_tokens"] == 700
    at_least = await _ask(http, CHAT, _chat("hello", min_tokens=700))
    assert at_least["usage"]["completion_tokens"] >= 700
    late = await _ask(http, CHAT, _chat("hello", stop=stop, min_tokens=30, max_tokens=40))
    assert late["usage"]["completion_tokens"] >= 30


async def test_several_prompts_have_a_choice_each(http):
    body = {"prompt": ["a", [1, 2, 3]], "max_tokens": 4}
    whole = await _ask(http, COMPLETIONS, body)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert whole["usage"]["prompt_tokens"] == 4
    assert whole["usage"]["completion_tokens"] == 8
    streamed = {0: "", 1: ""}
    for chunk in await _stream(http, COMPLETIONS, body):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert [*streamed.values()] == [choice["text"] for choice in whole["choices"]]


async def test_tokens_may_be_counted_and_turned_back(http):
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    counted = await _ask(http, "/tokenize", chat)
    assert counted["count"] == len(counted["tokens"])
    assert counted["count"] == (await _ask(http, CHAT, chat | {"max_tokens": 1}))["usage"]["prompt_tokens"]
    tokens = (await _ask(http, "/tokenize", {"prompt": "grüße"}))["tokens"]
    assert await _ask(http, "/detokenize", {"tokens": tokens}) == {"prompt": "grüße"}


async def test_what_is_served_can_be_asked(http):
    async with http.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 8192)
    async with http.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with http.get("/version") as response:
        assert set(await response.json()) == {"version"}


async def test_metrics_have_vllms_names_and_say_what_happened(http):
    for _ in range(2):
        await _ask(http, COMPLETIONS, {"prompt": "x" * 1028, "max_tokens": 3})
    metrics = await _metrics(http)
    assert metrics == {
        "vllm:cache_config_info": 1,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 2 * 257,
        "vllm:prefix_cache_hits_total": 256,
        "vllm:num_preemptions_total": 0,
        "vllm:prompt_tokens_total": 2 * 257,
        "vllm:generation_tokens_total": 6,
    }
    async with http.get("/metrics") as response:
        text = await response.text()
    assert 'block_size="16"' in text
    assert 'num_gpu_blocks="1025"' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_its_request(stream):
    settings = EngineSettings(model="tiny", kv_tokens=4096, speed=20)
    async with EmulatedServer(settings) as server, aiohttp.ClientSession(server.url) as http:

        async def ask(name: str) -> None:
            body = _chat(name * 10_000, stream=stream, max_tokens=1500, ignore_eos=True)
            async with http.post(CHAT, json=body) as response:
                await response.read()

        clients = [asyncio.create_task(ask(name)) for name in "ab"]  # one runs and one waits
        await _until(lambda: server.engine.counters.generation_tokens > 1)
        assert (len(server.engine.running), len(server.engine.waiting)) == (1, 1)
        running = (await _metrics(http))["vllm:num_requests_running"]
        for client in clients:
            client.cancel()
        await _until(lambda: not server.engine.running and not server.engine.waiting)
        assert running == 1
        assert server.engine.kv_usage == 0
        async with http.get("/metrics") as response:
            assert 'finished_reason="abort",model_name="tiny"} 2.0' in await response.text()


_NEST = b'[{"type": "tool_result", "content": ' * 400 + b'"x"' + b"}]" * 400


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (CHAT, b"{", 400, "JSON"),
        (CHAT, b"\xff", 400, "JSON"),
        (CHAT, b"[" * 100_000, 400, "nested too deeply"),
        (CHAT, b'{"messages": [{"role": "user", "content": %s}]}' % _NEST, 400, "nested too deeply"),
        (CHAT, b"[]", 400, "object"),
        (CHAT, b"{}", 400, "messages"),
        (CHAT, b'{"messages": []}', 400, "messages"),
        (CHAT, b'{"messages": [{"role": "user", "content": 3}]}', 400, "messages.0.content"),
        (CHAT, b'{"messages": [{"content": "x"}]}', 400, "messages.0.role"),
        (CHAT, b'{"messages": [{"role": "user"}], "max_tokens": 0}', 400, "max_tokens"),
        (CHAT, b'{"messages": [{"role": "user"}], "max_tokens": 9000}', 400, "8192"),
        (CHAT, b'{"messages": [{"role": "user"}], "min_tokens": 9000}', 400, "8192"),
        (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"x" * 40_000), 400, "8192"),
        (CHAT, b'{"messages": [{"role": "user"}], "n": 2}', 400, "n:"),
        (CHAT, b'{"messages": [{"role": "user"}], "model": "other"}', 404, "other"),
        (CHAT, b'{"messages": [{"role": "user"}], "stream_options": {}}', 400, "stream"),
        ("/v1/responses", b'{"input": []}', 400, "input"),
        ("/v1/responses", b'{"input": "x", "max_output_tokens": 9000}', 400, "8192"),
        (COMPLETIONS, b'{"prompt": ""}', 400, "empty"),
        (COMPLETIONS, b'{"prompt": []}', 400, "prompt"),
        (COMPLETIONS, b'{"prompt": [-1]}', 400, "token ids"),
        (COMPLETIONS, b'{"prompt": [1, "a"]}', 400, "prompt"),
        (COMPLETIONS, b'{"prompt": "a", "min_tokens": 5, "max_tokens": 4}', 400, "min_tokens"),
        ("/tokenize", b"{}", 400, "prompt or messages"),
        ("/detokenize", b'{"tokens": [-1]}', 400, "tokens.0"),
        ("/v1/nothing", b"{}", 404, "Not Found"),
        ("/v1/models", b"{}", 405, "Method Not Allowed"),
    ],
)
async def test_refusals_are_openai_shaped_and_say_what_is_wrong(http, path, body, status, says):
    async with http.post(path, data=body) as response:
        answer = await response.json()
    assert response.status == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert says in answer["error"]["message"]


async def test_compressed_bodies_are_read_and_broken_ones_refused(http):
    data = json.dumps(_chat("hello", max_tokens=1)).encode()
    for body, status in ((gzip.compress(data), 200), (b"nonsense", 400)):
        async with http.post(CHAT, data=body, headers={"Content-Encoding": "gzip"}) as response:
            assert response.status == status


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *("prompt", "messages", "tools", "model", "max_tokens", "max_completion_tokens", "min_tokens", "stop"),
    *("ignore_eos", "n", "seed", "cache_salt", "stream", "stream_options", "tokens", "add_generation_prompt"),
    *("input", "instructions", "max_output_tokens", "system", "stop_sequences"),
]
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), ANYTHING | st.just("user")),
    max_size=2,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6).flatmap(
    lambda body: st.just(body) | MESSAGES.map(lambda messages: {**body, "messages": messages})
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"]),
    body=BODIES,
)
async def test_whatever_the_body_it_is_served_or_refused(http, path, body):
    async with http.post(path, data=json.dumps(body)) as response:
        await response.read()
    assert response.status in (200, 400, 404)


async def test_a_client_that_leaves_at_the_last_word_is_no_error(caplog):
    """The reset may only be noticed by the write that ends the stream."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        await response.write(b"one")
        return response

    app = web.Application(middlewares=[refusals])
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await (await http.get(f"http://{host}:{port}/")).read()
    finally:
        await runner.cleanup()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
