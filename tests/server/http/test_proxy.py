"""Calls through the data plane, over real sockets: what arrives at the engine, and at the client."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from thunder_server.backend_spec import BackendSpec
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.events import ProgramClosed
from thunder_server.core.policies import CapSettings

from .fake_engine import FakeEngine, Reply, Seen, chunk_of, engines, plain_answer, usage_chunk
from .harness import CHAT, HELLO, STREAM, Served, serve


async def test_a_call_reaches_the_engine_and_its_answer_the_client() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        status, headers, answer = await served.chat(program="p1")
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "one two three")
        assert headers["X-Thunder-Program-Id"] == "p1"
        assert headers["X-Thunder-Backend"] == engine.id
        assert int(headers["X-Thunder-Wait-Ms"]) < 1000
        assert engine.seen[0].json == HELLO
        assert served.view("p1")["tokens"] == {"context": 107, "prompt": 100, "completion": 7, "cached": 64}
        assert served.view("p1")["phase"] == "acting"


async def test_a_stream_passes_and_is_counted() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        body = await served.stream(X_Thunder_Program_Id="p1")
        assert body.endswith(b"data: [DONE]\n\n")
        assert b'"usage"' not in body
        assert engine.seen[0].json == {**STREAM, "stream_options": {"include_usage": True}}
        assert served.view("p1")["tokens"]["prompt"] == 100


async def test_what_crosses_and_what_does_not() -> None:
    """Both ways: hop-by-hop headers stop, ours stop, everything else goes on, duplicates and all."""

    async def answer(seen: Seen, reply: Reply) -> None:
        await reply.raw(
            b"HTTP/1.1 201 Fine\r\nContent-Type: application/x-odd\r\nX-Twice: a\r\nX-Twice: b\r\n"
            b"Set-Cookie: c=1\r\nSet-Cookie: d=2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: stops\r\n"
            b"Keep-Alive: timeout=5\r\nContent-Length: 2\r\nDate: then\r\nServer: engine\r\n\r\n{}"
        )

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = answer
        request = (
            b"POST /v1/chat/completions?q=a%2Fb&x HTTP/1.1\r\nHost: thunder\r\nContent-Length: 13\r\n"
            b"Connection: close, X-My-Hop\r\nX-My-Hop: stops\r\nTE: trailers\r\nTwice: a\r\nTwice: b\r\n"
            b"X-Thunder-Group: g\r\nx-thunder-anything: stops\r\nX-Session-ID: s\r\ntraceparent: t\r\n"
            b"X-Bytes: \xff\xfe\r\nX-Utf8: \xc3\xa9\r\n\r\n"
            b'{"model":"m"}'
        )
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        writer.write(request)
        answered = await reader.read()
        writer.close()
        seen = engine.seen[0]
        assert seen.target == CHAT + "?q=a%2Fb&x"
        assert seen.body == b'{"model":"m"}'
        assert sorted(
            (name.lower(), value) for name, value in seen.headers if name.lower() not in ("host", "x-bytes")
        ) == [
            ("content-length", "13"),
            ("traceparent", "t"),
            ("twice", "a"),
            ("twice", "b"),
            ("x-session-id", "s"),
            ("x-utf8", "Ã©"),
        ]
        head, body = answered.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        assert (first, body) == ("HTTP/1.1 201 Fine", b"{}")
        got = sorted(tuple(line.lower().split(": ", 1)) for line in lines)
        assert [pair for pair in got if not pair[0].startswith("x-thunder-")] == [
            ("connection", "close"),
            ("content-length", "2"),
            ("content-type", "application/x-odd"),
            ("date", "then"),
            ("server", "engine"),
            ("set-cookie", "c=1"),
            ("set-cookie", "d=2"),
            ("x-twice", "a"),
            ("x-twice", "b"),
        ]


@pytest.mark.parametrize(
    ("path", "headers", "body", "program"),
    [
        ("/p/by-path" + CHAT, {"X-Thunder-Program-Id": "no"}, {}, "by-path"),
        ("/p/a%3Ab" + CHAT, {}, {}, "a:b"),
        (CHAT + "/", {"X-Session-ID": "s"}, {"program_id": "by-body"}, "by-body"),
        (CHAT, {"X-Session-ID": "s"}, {}, "s"),
    ],
)
async def test_identity_arrives(path: str, headers: dict[str, str], body: Any, program: str) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        url = served.url + path
        async with served.client.post(url, json={**HELLO, **body}, headers=headers) as answer:
            assert (answer.status, answer.headers["X-Thunder-Program-Id"]) == (200, program)
        assert engine.seen[0].target == CHAT
        assert engine.seen[0].json == HELLO


async def test_a_compressed_body_passes_undecoded() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = compressed_echo
        raw = gzip.compress(json.dumps({**HELLO, "program_id": "inside"}).encode())
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with served.client.post(served.url + CHAT, data=raw, headers=headers) as answer:
            assert answer.headers["X-Thunder-Program-Id"] == "inside"
        assert engine.seen[0].body == raw
        assert engine.seen[0].header("Content-Encoding") == "gzip"


async def compressed_echo(seen: Seen, reply: Reply) -> None:
    await reply.json({"choices": []})


async def test_a_backend_with_a_key_of_its_own() -> None:
    async with FakeEngine() as engine:
        spec = BackendSpec.model_validate({"url": engine.url, "api_key": "engine-key"})
        async with serve([], specs=[spec]) as served:
            await served.chat(Authorization="Bearer mine")
            async with served.client.get(served.url + "/v1/other", headers={"Authorization": "mine"}):
                pass
        assert [seen.header("Authorization") for seen in engine.seen] == ["Bearer engine-key"] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "headers"), [(400, {}), (429, {"Retry_After": "7"}), (503, {"Retry_After": "2"}), (302, {})]
)
async def test_what_an_engine_refuses_is_passed_as_it_is(
    status: int, headers: dict[str, str], stream: bool
) -> None:
    async def refuse(seen: Seen, reply: Reply) -> None:
        await reply.body(b'{"object":"error", "message" : "no"}', status, content_type="text/odd", **headers)

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = refuse
        body = STREAM if stream else HELLO
        url = served.url + CHAT
        async with served.client.post(url, json=body, allow_redirects=False) as answer:
            assert (answer.status, await answer.read()) == (status, b'{"object":"error", "message" : "no"}')
            assert answer.headers["Content-Type"] == "text/odd"
            assert answer.headers.get("Retry-After") == headers.get("Retry_After")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_events_split_at_any_byte(size: int, end: bytes) -> None:
    tool = json.dumps({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"a":"é🎈"}'}}]}}]})
    shown = [b": hello" + end, chunk_of("größe 🎈") + end, b"data:" + tool.encode() + end]
    done = b"data: [DONE]" + end

    async def split(seen: Seen, reply: Reply) -> None:
        whole = b"".join(shown) + usage_chunk() + end + done
        await reply.stream_head()
        for start in range(0, len(whole), size):
            await reply.chunk(whole[start : start + size])
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = split
        assert await served.stream(X_Thunder_Program_Id="p") == b"".join(shown) + done
        assert served.view("p")["tokens"]["prompt"] == 100


@pytest.mark.parametrize("tail", [b"", b"data: half an event", b"data: x\n"])
async def test_a_stream_that_ends_cleanly_without_done_is_passed_as_it_is(tail: bytes) -> None:
    async def short(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n" + tail)
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = short
        assert await served.stream(X_Thunder_Program_Id="p") == chunk_of("one") + b"\n\n" + tail
        assert served.view("p")["phase"] == "acting"


@pytest.mark.parametrize("known_length", [False, True])
async def test_a_backend_that_dies_in_a_stream_is_one_error_event(known_length: bool) -> None:
    async def dies(seen: Seen, reply: Reply) -> None:
        if known_length:
            await reply.head(content_type="text/event-stream", content_length="5000")
            await reply.raw(chunk_of("one") + b"\n\n" + b'data: {"choices": [{"del')
        else:
            await reply.stream_head()
            await reply.chunk(chunk_of("one") + b"\n\n" + b'data: {"choices": [{"del')
        reply.die()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = dies
        first, last, rest = (await served.stream()).split(b"\n\n")
        assert (first, rest) == (chunk_of("one"), b"")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"], error["param"]) == ("backend_error", "server_error", None)


async def test_a_backend_that_dies_in_a_whole_answer_is_a_502() -> None:
    async def dies(seen: Seen, reply: Reply) -> None:
        await reply.head(content_type="application/json", content_length="5000")
        await reply.raw(b'{"choices": [')
        reply.die()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = dies
        status, headers, answer = await served.chat(program="p")
        assert (status, answer["error"]["code"]) == (502, "backend_error")
        assert headers["X-Thunder-Program-Id"] == "p"


async def test_an_answer_that_is_no_http_is_a_502() -> None:
    async def garbage(seen: Seen, reply: Reply) -> None:
        await reply.raw(b"SSH-2.0-OpenSSH_9.0\r\n\r\n")

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = garbage
        assert (await served.chat())[0] == 502


async def test_a_backend_that_says_nothing_is_a_504() -> None:
    async def silent(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine], silence_s=0.05) as served:
        engine.answer = silent
        status, _, answer = await served.chat(program="p")
        assert (status, answer["error"]["code"]) == (504, "backend_timeout")
        assert served.view("p")["phase"] == "acting"
        async with asyncio.timeout(1.0):
            await engine.seen[0].gone.wait()


async def test_encoded_streams_are_decoded_once() -> None:
    whole = chunk_of("one") + b"\n\n" + usage_chunk() + b"\n\ndata: [DONE]\n\n"

    async def encoded(seen: Seen, reply: Reply) -> None:
        raw = gzip.compress(whole)
        await reply.stream_head(content_encoding="gzip")
        for start in range(0, len(raw), 10):
            await reply.chunk(raw[start : start + 10])
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = encoded
        headers = {"X-Thunder-Program-Id": "p", "Accept-Encoding": "gzip"}
        async with served.client.post(served.url + CHAT, json=STREAM, headers=headers) as answer:
            assert "Content-Encoding" not in answer.headers
            assert await answer.read() == chunk_of("one") + b"\n\ndata: [DONE]\n\n"
        assert served.view("p")["tokens"]["cached"] == 64


async def test_a_stream_in_an_unknown_coding_passes_sealed() -> None:
    async def sealed(seen: Seen, reply: Reply) -> None:
        await reply.stream_head(content_encoding="zstd")
        await reply.chunk(b"\x28\xb5\x2f\xfd...")
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = sealed
        assert await served.stream(X_Thunder_Program_Id="p") == b"\x28\xb5\x2f\xfd..."
        assert served.view("p")["phase"] == "acting"


async def test_a_queued_stream_is_told_that_it_is_not_forgotten() -> None:
    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1), heartbeat_s=0.02) as served,
    ):
        await served.chat(program="first")
        url, headers = served.url + CHAT, {"X-Thunder-Program-Id": "second"}
        async with served.client.post(url, json=STREAM, headers=headers) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert [await answer.content.readline() for _ in range(4)] == [b": queued\n", b"\n"] * 2
            end(served, "first")
            body = await answer.read()
        events = [event for event in body.split(b"\n\n") if event and event != b": queued"]
        assert events == [chunk_of("one "), chunk_of("two "), chunk_of("three"), b"data: [DONE]"]
        assert served.view("second")["tokens"]["prompt"] == 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message":\n "full"}}', "full"),
        (b"<html>", "The backend answered with status 429: <html>"),
        (b'{"detail": "no"}', 'The backend answered with status 429: {"detail": "no"}'),
        (b"", "The backend answered with status 429."),
    ],
)
async def test_what_is_refused_after_the_comments_is_one_error_event(body: bytes, message: str) -> None:
    async def refuse(seen: Seen, reply: Reply) -> None:
        await reply.body(body, 429, content_type="application/json", retry_after="3")

    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1), heartbeat_s=0.02) as served,
    ):
        await served.chat(program="first")
        engine.answer = refuse
        async with served.client.post(served.url + CHAT, json=STREAM) as answer:
            await answer.content.readline()
            end(served, "first")
            *_, last, rest = (await answer.read()).split(b"\n\n")
        assert rest == b""
        assert json.loads(last.strip().removeprefix(b"data: "))["error"]["message"] == message


def end(served: Served, program_id: str) -> None:
    served.runtime.post(ProgramClosed(at=served.runtime.now(), program_id=program_id))


async def test_max_wait_of_zero_means_only_if_free_now() -> None:
    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1)) as served,
    ):
        assert (await served.chat(program="first", X_Thunder_Max_Wait="0"))[0] == 200
        status, headers, answer = await served.chat(program="second", X_Thunder_Max_Wait="0")
        assert (status, answer["error"]["code"]) == (503, "admission_timeout")
        assert int(headers["Retry-After"]) >= 1


async def test_no_backend() -> None:
    config = SchedulerConfig(no_backend_after_s=0.05)
    async with FakeEngine() as engine, serve([engine], config=config) as served:
        await engine.stop()
        await served.until(lambda: not served.runtime.healthy_backends)
        status, headers, answer = await served.chat()
        assert (status, answer["error"]["code"]) == (503, "no_backend")
        assert int(headers["Retry-After"]) >= 1
        async with served.client.get(served.url + "/v1/models") as models:
            assert models.status == 503


async def test_every_backend_refusing_the_connection_is_a_502() -> None:
    async with FakeEngine() as engine, serve([engine], poll_s=30.0) as served:
        await engine.stop()
        status, _, answer = await served.chat(program="p")
        assert (status, answer["error"]["code"]) == (502, "backend_error")
        assert served.view("p")["phase"] == "acting"


async def test_a_final_call_ends_its_program_however_it_ends() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        await served.chat(program="p", X_Thunder_Final="true")
        assert served.view("p")["status"] == "terminated"
        await served.chat(program="p")
        assert (served.view("p")["status"], served.view("p")["generation"]) == ("active", 2)
        status, _, answer = await served.chat({**HELLO, "model": "other"}, program="p", X_Thunder_Final="1")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        assert served.view("p")["status"] == "terminated"


async def test_removing_a_backend_cuts_its_calls() -> None:
    async def streams_and_hangs(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n")
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = streams_and_hangs
        call = asyncio.create_task(served.stream(X_Thunder_Program_Id="p"))
        seen = await engine.arrived()
        served.runtime.remove_backend(engine.id)
        last = (await call).rstrip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "backend_error"
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        assert served.view("p")["phase"] == "acting"


async def test_a_drained_backend_gets_no_new_calls() -> None:
    async with engines(2) as (one, two), serve([one, two]) as served:
        _, headers, _ = await served.chat(program="p")
        home, other = (one, two) if headers["X-Thunder-Backend"] == one.id else (two, one)
        served.runtime.drain_backend(home.id, timeout_s=0.05)
        assert (await served.chat(program="p"))[1]["X-Thunder-Backend"] == other.id


async def test_the_time_of_a_drain_is_bounded() -> None:
    async def hangs(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = hangs
        call = asyncio.create_task(served.chat(program="p"))
        await engine.arrived()
        served.runtime.drain_backend(engine.id, timeout_s=0.05)
        assert (await call)[0] == 502


async def test_identical_calls_run_side_by_side() -> None:
    together = asyncio.Event()

    async def waits(seen: Seen, reply: Reply) -> None:
        await together.wait()
        await plain_answer(seen, reply)

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = waits
        calls = [asyncio.create_task(served.chat(program="p")) for _ in range(2)]
        await engine.arrived(2)
        together.set()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]
        assert served.view("p")["calls"]["total"] == 2


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_connections_to_an_engine_are_used_again(body: Any) -> None:
    async with FakeEngine() as engine, serve([engine], poll_s=30.0) as served:
        await served.stream(body)
        before = engine.connections
        for _ in range(5):
            await served.stream(body)
        assert engine.connections == before


async def test_a_fault_of_ours_in_a_stream_is_an_error_event(caplog: pytest.LogCaptureFixture) -> None:
    first_read = asyncio.Event()

    async def two_parts(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n")
        await first_read.wait()
        await reply.chunk(chunk_of("two") + b"\n\n")
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = two_parts
        now, faults = served.runtime.now, iter([ZeroDivisionError])

        def faulty() -> float:
            for fault in faults:
                raise fault
            return now()

        headers = {"X-Thunder-Program-Id": "p"}
        async with served.client.post(served.url + CHAT, json=STREAM, headers=headers) as answer:
            await answer.content.readline()
            served.runtime.now = faulty  # type: ignore[method-assign]
            first_read.set()
            last = (await answer.read()).rstrip().split(b"\n\n")[-1].strip()
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "internal_error"
        assert "ZeroDivisionError" in caplog.text
        assert served.view("p")["phase"] == "acting"


async def test_an_engine_that_fails_in_its_own_words_has_failed() -> None:
    whole = b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n'

    async def fails(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n" + whole)
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = fails
        assert await served.stream(X_Thunder_Program_Id="p") == chunk_of("one") + b"\n\n" + whole
        assert served.view("p")["calls"]["failed"] == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_comments_go_on_while_the_engine_takes_its_time(leaves: bool) -> None:
    begin = asyncio.Event()

    async def slow(seen: Seen, reply: Reply) -> None:
        await begin.wait()
        await plain_answer(seen, reply)

    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1), heartbeat_s=0.01) as served,
    ):
        await served.chat(program="first")
        engine.answer = slow
        url, headers = served.url + CHAT, {"X-Thunder-Program-Id": "second"}
        async with served.client.post(url, json=STREAM, headers=headers) as answer:
            await answer.content.readline()
            end(served, "first")
            seen = await engine.arrived(2)
            for _ in range(6):
                assert await answer.content.readline() in (b": queued\n", b"\n")
            if not leaves:
                begin.set()
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
                return
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        await served.until(lambda: served.view("second")["phase"] == "acting")


async def test_a_sealed_stream_that_breaks_is_seen_to_break() -> None:
    async def breaks(seen: Seen, reply: Reply) -> None:
        await reply.stream_head(content_encoding="zstd")
        await reply.chunk(b"\x28\xb5\x2f\xfd...")
        reply.die()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = breaks
        with pytest.raises(aiohttp.ClientError):
            await served.stream(X_Thunder_Program_Id="p")
        await served.until(lambda: served.view("p")["phase"] == "acting")
        assert served.view("p")["calls"]["failed"] == 1


async def test_a_stream_that_does_not_decode_has_failed() -> None:
    async def lies(seen: Seen, reply: Reply) -> None:
        await reply.stream_head(content_encoding="gzip")
        await reply.chunk(b"data: plain\n\n")
        await reply.end()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = lies
        error = json.loads((await served.stream()).removeprefix(b"data: "))["error"]
        assert error["code"] == "backend_error"


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'"usage"', b"[" * 100_000])
async def test_an_answer_without_usage_is_passed_and_counts_as_a_call(body: bytes) -> None:
    async def odd(seen: Seen, reply: Reply) -> None:
        await reply.body(body, content_encoding="gzip", content_type="application/json")

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = odd
        assert await served.stream(HELLO, X_Thunder_Program_Id="p") == body
        view = served.view("p")
        assert (view["phase"], view["calls"]["total"], view["calls"]["failed"]) == ("acting", 1, 0)


async def test_engines_are_told_priorities_only_where_that_is_wanted() -> None:
    plain = {"model": "m", "messages": [], "priority": None}
    bodies = [HELLO, STREAM, {**HELLO, "priority": 7}, plain]
    async with FakeEngine() as engine:
        for options in ({}, {"engine_priority": True}):
            async with serve([engine], **options) as served:
                for body in bodies:
                    await served.stream(body, X_Thunder_Program_Id="p", X_Thunder_Priority="5")
                await served.stream(HELLO, X_Thunder_Program_Id="p")  # whose priority is known by now
                await served.stream(HELLO, X_Thunder_Program_Id="other")
                await served.stream(HELLO)
        missing = object()
        told = [seen.json.get("priority", missing) for seen in engine.seen]
        assert told[:7] == [missing, missing, 7, None, missing, missing, missing]
        # vLLM serves the lower number earlier.
        assert told[7:] == [-5, -5, 7, None, -5, missing, missing]
        assert engine.seen[7].json == {**HELLO, "priority": -5}


async def test_an_engine_that_knows_no_priority_is_told_none() -> None:
    async with FakeEngine() as engine:
        spec = BackendSpec(url=engine.url, engine="openai")
        async with serve([], specs=[spec], engine_priority=True) as served:
            await served.stream(HELLO, X_Thunder_Program_Id="p", X_Thunder_Priority="5")
        assert engine.seen[0].json == HELLO
