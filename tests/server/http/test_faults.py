"""Faults that proxies of this kind are known for, each with tests over real sockets that naive code fails.

=============================================================  ==============================================
fault                                                          test_…
=============================================================  ==============================================
phase stuck at reasoning: no usage, error, CRLF, dead backend  phase_is_not_stuck_…_however_a_call_ends
phase stuck at reasoning: the client dies                      phase_is_not_stuck_…_when_the_client_dies,
                                                               …_when_the_client_stops_reading,
                                                               …_when_the_client_leaves_right_after_done
queued request of a vanished client still runs                 queued_request_of_a_vanished_client_never_runs
… and its retry runs too                                       retry_of_a_queued_request_takes_its_place,
                                                               retry_of_a_running_request_cancels_the_first_…
release of a queued program forwards the request untracked     release_of_a_queued_program_does_not_send_…
parallel calls of a program overwrite each other's tokens      parallel_calls_…_keep_their_own_tokens
untagged traffic collapses into one "default" program          untagged_callers_never_share_a_program
dead backend keeps its programs for ever                       dead_backend_does_not_keep_its_programs,
                                                               connection_refused_is_retried_elsewhere_…,
                                                               request_that_reached_an_engine_is_never_sent_…,
                                                               dead_backend_that_returns_is_used_again
capacity read once                                             capacity_is_read_again_and_again
``"None"``, NaN, renamed metrics, ``6.2e-05`` misparsed        metrics_are_read_for_what_they_say
one hung /metrics stalls all scheduling                        one_hung_metrics_page_stalls_nobody
trailing slash or ``/v1`` in a backend URL                     backend_url_with_a_tail
gzip bodies re-labelled                                        encoded_body_passes_as_it_is
usage chunk shown to a client that did not ask                 usage_chunk_is_shown_only_to_who_asked
Authorization not forwarded                                    authorization_is_forwarded,
                                                               key_of_the_server_stops_at_the_server
anyone may release anyone                                      nobody_without_a_key_releases_anybody
O(N²) tick at 10,000 programs                                  ten_thousand_programs_hold_up_no_call
throughput falls with concurrency                              throughput_does_not_fall_with_concurrency
=============================================================  ==============================================
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import aiohttp
import brotli
import pytest

from thunder_server.backend_spec import BackendSpec
from thunder_server.core.events import (
    CallArrived,
    CallConnectFailed,
    CallEnd,
    CallFinished,
    Outcome,
    ProgramClosed,
)
from thunder_server.core.policies import CapSettings, PaperSettings

from .fake_engine import Answer, FakeEngine, Reply, Seen, chunk_of, engines, plain_answer, usage_chunk
from .harness import CHAT, HELLO, STREAM, serve
from .whole import PROGRAMS, whole

DONE = b"data: [DONE]"


async def no_usage(seen: Seen, reply: Reply) -> None:
    await reply.json({"id": "c", "choices": [{"message": {"role": "assistant", "content": "x"}}]})


async def refused(seen: Seen, reply: Reply) -> None:
    await reply.json({"error": {"message": "too long"}}, status=400)


async def failed(seen: Seen, reply: Reply) -> None:
    await reply.body(b"oops", status=500, content_type="text/plain")


async def crlf_stream(seen: Seen, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(chunk_of("one") + b"\r\n\r\n")
    await reply.chunk(usage_chunk() + b"\r\n\r\n" + DONE + b"\r\n\r\n")
    await reply.end()


async def dies_before_the_head(seen: Seen, reply: Reply) -> None:
    reply.die()


async def dies_in_the_stream(seen: Seen, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(chunk_of("one") + b"\n\n" + b'data: {"choices": [{"del')
    reply.die()


async def hangs(seen: Seen, reply: Reply) -> None:
    await asyncio.Event().wait()


async def streams_and_hangs(seen: Seen, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(chunk_of("one") + b"\n\n")
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [no_usage, refused, failed, crlf_stream, dies_before_the_head, dies_in_the_stream, plain_answer]
)
async def test_phase_is_not_stuck_at_reasoning_however_a_call_ends(script: Answer, stream: bool) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = script
        await served.stream(STREAM if stream else HELLO, X_Thunder_Program_Id="p")
        view = served.view("p")
        assert view["phase"] == "acting"
        assert (view["calls"]["running"], view["calls"]["waiting"], view["calls"]["total"]) == (0, 0, 1)


@pytest.mark.parametrize("script", [hangs, streams_and_hangs])
@pytest.mark.parametrize("stream", [False, True])
async def test_phase_is_not_stuck_at_reasoning_when_the_client_dies(script: Answer, stream: bool) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = script
        call = asyncio.create_task(served.stream(STREAM if stream else HELLO, X_Thunder_Program_Id="p"))
        seen = await engine.arrived()
        assert served.view("p")["phase"] == "reasoning"
        call.cancel()
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        await served.until(lambda: served.view("p")["phase"] == "acting")
        assert served.view("p")["calls"]["cancelled"] == 1


async def test_phase_is_not_stuck_at_reasoning_when_the_client_stops_reading() -> None:
    stopped = asyncio.Event()

    async def endless(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        try:
            while True:
                await reply.chunk(chunk_of("x" * 100_000) + b"\n\n")
        finally:
            stopped.set()

    async with FakeEngine() as engine, serve([engine], silence_s=0.3) as served:
        engine.answer = endless
        _, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"), limit=1)
        writer.write(f"POST /p/p{CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\n\r\n".encode())
        writer.write(b'{"stream":true}')
        await engine.arrived()
        await served.until(lambda: served.view("p")["phase"] == "acting", timeout=20)
        assert served.view("p")["calls"]["cancelled"] == 1
        async with asyncio.timeout(5):
            await stopped.wait()
        writer.close()


async def test_phase_is_not_stuck_at_reasoning_when_the_client_leaves_right_after_done() -> None:
    """OpenAI's client closes the connection as soon as it has read ``[DONE]``: that cancels nothing."""

    async def keeps_the_connection_open(seen: Seen, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(chunk_of("one") + b"\n\n" + usage_chunk() + b"\n\n" + DONE + b"\n\n")
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = keeps_the_connection_open
        headers = {"X-Thunder-Program-Id": "p"}
        async with served.client.post(served.url + CHAT, json=STREAM, headers=headers) as answer:
            while DONE not in await answer.content.readline():
                pass
            view = served.view("p")
        assert (view["phase"], view["calls"]["cancelled"], view["tokens"]["prompt"]) == ("acting", 0, 100)


def one_at_a_time() -> dict[str, Any]:
    return {"policy": "cap", "policy_settings": CapSettings(programs=1)}


async def test_queued_request_of_a_vanished_client_never_runs() -> None:
    async with FakeEngine() as engine, serve([engine], **one_at_a_time()) as served:
        await served.chat(program="first")
        queued = asyncio.create_task(served.chat(program="second"))
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 1)
        queued.cancel()
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 0)
        served.runtime.post(ProgramClosed(at=served.runtime.now(), program_id="first"))
        await served.chat(program="third")
        assert [seen.header("X-Session-ID") for seen in engine.seen] == [None, None]
        assert served.view("second")["calls"]["cancelled"] == 1


async def test_retry_of_a_queued_request_takes_its_place() -> None:
    async with FakeEngine() as engine, serve([engine], **one_at_a_time()) as served:
        await served.chat(program="first")
        queued = asyncio.create_task(served.chat(program="second"))
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 1)
        retry = asyncio.create_task(served.chat(program="second", x_stainless_retry_count="1"))
        status, headers, answer = await queued
        assert (status, answer["error"]["code"]) == (409, "superseded")
        assert headers["x-should-retry"] == "false"
        served.runtime.post(ProgramClosed(at=served.runtime.now(), program_id="first"))
        assert (await retry)[0] == 200
        assert len(engine.seen) == 2
        assert served.view("second")["calls"]["total"] == 1


async def test_retry_of_a_running_request_cancels_the_first_at_the_engine() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = streams_and_hangs
        first = asyncio.create_task(served.stream(X_Thunder_Program_Id="p"))
        seen = await engine.arrived()
        engine.answer = plain_answer
        second = await served.stream(X_Thunder_Program_Id="p", X_Thunder_Retry="1")
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        assert second.endswith(DONE + b"\n\n")
        last = (await first).rstrip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "superseded"
        assert served.view("p")["calls"]["total"] == 1


async def test_release_of_a_queued_program_does_not_send_its_request() -> None:
    async with FakeEngine() as engine, serve([engine], **one_at_a_time()) as served:
        await served.chat(program="first")
        queued = asyncio.create_task(served.chat(program="second"))
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 1)
        served.runtime.post(
            ProgramClosed(at=served.runtime.now(), program_id="second", outcome=Outcome.DROPPED)
        )
        status, headers, answer = await queued
        assert (status, answer["error"]["code"]) == (409, "program_terminated")
        assert headers["x-should-retry"] == "false"
        assert len(engine.seen) == 1


async def test_parallel_calls_of_one_program_keep_their_own_tokens() -> None:
    release = asyncio.Event()

    async def by_size(seen: Seen, reply: Reply) -> None:
        await release.wait()
        size = len(seen.json["messages"][0]["content"])
        await reply.json({"choices": [], "usage": {"prompt_tokens": size, "completion_tokens": 1}})

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = by_size
        bodies = [{"model": "m", "messages": [{"role": "user", "content": "x" * size}]} for size in (30, 500)]
        calls = [asyncio.create_task(served.chat(body, program="p")) for body in bodies]
        await engine.arrived(2)
        assert served.view("p")["calls"]["running"] == 2
        release.set()
        await asyncio.gather(*calls)
        tokens = served.view("p")["tokens"]
        assert (tokens["prompt"], tokens["completion"]) == (530, 2)
        assert tokens["context"] in (31, 501)


async def test_untagged_callers_never_share_a_program() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        ids = {(await served.chat())[1]["X-Thunder-Program-Id"] for _ in range(3)}
        assert len(ids) == 3
        assert not served.runtime.scheduler.programs


async def test_dead_backend_does_not_keep_its_programs() -> None:
    async with engines(2) as (one, two), serve([one, two]) as served:
        _, headers, _ = await served.chat(program="p")
        dead, alive = (one, two) if headers["X-Thunder-Backend"] == one.id else (two, one)
        await dead.stop()
        for _ in range(3):
            status, headers, _ = await served.chat(program="p")
            assert (status, headers["X-Thunder-Backend"]) == (200, alive.id)


async def test_connection_refused_is_retried_elsewhere_before_anybody_noticed_the_death() -> None:
    async with engines(2) as (one, two), serve([one, two], poll_s=30.0) as served:
        _, headers, _ = await served.chat(program="p")
        dead, alive = (one, two) if headers["X-Thunder-Backend"] == one.id else (two, one)
        await dead.stop()
        status, headers, _ = await served.chat(program="p")
        assert (status, headers["X-Thunder-Backend"]) == (200, alive.id)
        assert any(isinstance(event, CallConnectFailed) for event in served.events)


async def test_request_that_reached_an_engine_is_never_sent_twice() -> None:
    async with engines(2) as (one, two), serve([one, two]) as served:
        one.answer = two.answer = dies_before_the_head
        status, _, answer = await served.chat(program="p")
        assert (status, answer["error"]["code"]) == (502, "backend_error")
        assert len(one.seen) + len(two.seen) == 1


async def test_dead_backend_that_returns_is_used_again() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        port = engine.port
        await engine.stop()
        await served.until(lambda: not served.runtime.healthy_backends)
        waiting = asyncio.create_task(served.chat(program="p"))
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 1)
        await engine.start(port)
        assert (await waiting)[0] == 200


async def test_capacity_is_read_again_and_again() -> None:
    async with FakeEngine(blocks=1025) as engine, serve([engine]) as served:
        backend = served.runtime.scheduler.backends[engine.id]
        await served.until(lambda: backend.capacity_tokens == 16384)
        engine.capacity(65)
        await served.until(lambda: backend.capacity_tokens == 1024)
        engine.pages["/metrics"] = '# TYPE x gauge\nvllm:cache_config_info{num_gpu_blocks="None"} 1.0\n'
        await served.until(lambda: backend.capacity_tokens is None)
        assert (await served.chat(program="p"))[0] == 200


CONFIG = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1025"} 1.0\n'


@pytest.mark.parametrize(
    ("page", "capacity", "used"),
    [
        (CONFIG + 'vllm:kv_cache_usage_perc{engine="0"} 6.2e-05\n', 16384, 1),
        (CONFIG + 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\n', 16384, 8192),
        (CONFIG + 'vllm:kv_cache_usage_perc{engine="0"} NaN\n', 16384, 0),
        (CONFIG.replace("1025", "None"), None, 0),
        (CONFIG.replace("cache_config_info", "cache_configuration"), None, 0),
        (CONFIG + CONFIG.replace('"0"', '"1"').replace("1025", "513"), 24576, 0),
        ("<html>502 Bad Gateway</html>", None, 0),
    ],
    ids=["tiny", "older name", "not a number", "none", "renamed", "two engines", "garbage"],
)
async def test_metrics_are_read_for_what_they_say(page: str, capacity: int | None, used: int) -> None:
    async with FakeEngine() as engine:
        engine.pages["/metrics"] = page
        async with serve([engine]) as served:
            view = served.runtime.scheduler.backend_view(served.runtime.scheduler.backends[engine.id])
            assert (view["healthy"], view["capacity_tokens"], view["used_tokens"]) == (True, capacity, used)
            assert (await served.chat(program="p"))[0] == 200  # served whatever it says
            # And the watch goes on.
            engine.capacity(129)
            backend = served.runtime.scheduler.backends[engine.id]
            await served.until(lambda: backend.capacity_tokens == 2048)


async def test_one_hung_metrics_page_stalls_nobody() -> None:
    async with engines(2) as (hung, fine), serve([fine]) as served:
        hung.pages["/metrics"] = hung.pages["/health"] = hangs
        served.runtime.add_backend(BackendSpec(url=hung.url))
        backend = served.runtime.scheduler.backends[fine.id]
        fine.capacity(129)
        await served.until(lambda: backend.capacity_tokens == 2048, timeout=1.0)
        assert (await served.chat(program="p"))[1]["X-Thunder-Backend"] == fine.id


@pytest.mark.parametrize("tail", ["/", "/v1", "/v1/"])
async def test_backend_url_with_a_tail(tail: str) -> None:
    async with FakeEngine() as engine, serve([], specs=[BackendSpec(url=engine.url + tail)]) as served:
        assert (await served.chat())[0] == 200
        assert engine.seen[0].target == CHAT


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_encoded_body_passes_as_it_is(encoding: str) -> None:
    encode = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[encoding]
    raw = encode(json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode())

    async def encoded(seen: Seen, reply: Reply) -> None:
        await reply.body(raw, content_type="application/json", content_encoding=encoding)

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = encoded
        headers = {"X-Thunder-Program-Id": "p", "Accept-Encoding": encoding}
        async with served.client.post(served.url + CHAT, json=HELLO, headers=headers) as answer:
            assert (answer.headers["Content-Encoding"], await answer.read()) == (encoding, raw)
        assert engine.seen[0].header("Accept-Encoding") == encoding
        assert served.view("p")["tokens"]["prompt"] == 5


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_usage_chunk_is_shown_only_to_who_asked(options: dict[str, Any], asked: bool) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        body = await served.stream({**STREAM, **options}, X_Thunder_Program_Id="p")
        assert (b'"choices": []' in body) is asked
        assert served.view("p")["tokens"] == {"context": 107, "prompt": 100, "completion": 7, "cached": 64}


async def test_authorization_is_forwarded() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        await served.chat(Authorization="Bearer mine")
        assert engine.seen[0].header("Authorization") == "Bearer mine"


async def test_key_of_the_server_stops_at_the_server() -> None:
    async with FakeEngine() as engine, serve([engine], keys=["s3cret"]) as served:
        status, _, answer = await served.chat()
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        for headers in (
            {"Authorization": "Bearer s3cret"},
            {"x_api_key": "s3cret"},
            {"X_Thunder_Api_Key": "s3cret", "Authorization": "Bearer mine"},
        ):
            assert (await served.chat(**headers))[0] == 200
        assert not any("s3cret" in value for seen in engine.seen for _, value in seen.headers)
        assert [seen.header("Authorization") for seen in engine.seen] == [None, None, "Bearer mine"]


async def test_nobody_without_a_key_releases_anybody() -> None:
    async with FakeEngine() as engine, whole([engine], api_key="s3cret") as server:
        key = {"X-Thunder-Api-Key": "s3cret"}
        assert (await server.ask("PUT", f"{PROGRAMS}/mine", {}, headers=key))[0] == 201
        for method, path, body in (
            ("POST", "/programs/release", {"program_id": "mine"}),
            ("DELETE", f"{PROGRAMS}/mine?outcome=dropped", None),
            ("PUT", f"{PROGRAMS}/mine", {"lease_s": 0.001}),
        ):
            for headers in ({}, {"Authorization": "Bearer guessed"}):
                status, answer = await server.ask(method, path, body, headers=headers)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        _, program = await server.ask("GET", f"{PROGRAMS}/mine", headers=key)
        assert (program["status"], program["lease_s"]) == ("active", 60.0)


async def test_ten_thousand_programs_hold_up_no_call() -> None:
    """Far more of them than fit, acting, so that every look at memory has to find out who leaves: ten times a
    second. Were it quadratic, the real calls below would wait for minutes."""
    tokens, at_once = 100, 10_000
    async with FakeEngine(blocks=1 + tokens * at_once // 2 // 16) as engine:
        paper = PaperSettings(interval_s=0.1, decay=1)
        async with serve([engine], policy="paper", policy_settings=paper, check=False) as served:
            runtime = served.runtime
            for number in range(at_once):
                call_id = f"c{number}"
                runtime.post(CallArrived(at=runtime.now(), call_id=call_id, program_id=f"p{number}"))
                end = CallFinished(
                    at=runtime.now(),
                    call_id=call_id,
                    end=CallEnd.COMPLETED,
                    prompt_tokens=tokens,
                    completion_tokens=0,
                )
                runtime.post(end)
                if number % 100 == 0:
                    await asyncio.sleep(0)  # as if they came over the network, ticks between them
            assert len(runtime.scheduler.programs) == at_once
            assert runtime.scheduler.queued_programs > at_once // 3
            placed = list(runtime.scheduler.backends[engine.id].programs)
            for program in placed[-5:]:
                async with asyncio.timeout(5):
                    assert (await served.chat(program=program.id))[0] == 200


async def test_throughput_does_not_fall_with_concurrency() -> None:
    """256 clients at once share no pool that they could exhaust: all are at the engine at the same time."""
    everybody = asyncio.Event()

    async def together(seen: Seen, reply: Reply) -> None:
        await everybody.wait()
        await plain_answer(seen, reply)

    async with FakeEngine() as engine, serve([engine], check=False) as served:
        engine.answer = together
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as client:

            async def call() -> int:
                async with client.post(served.url + CHAT, json=HELLO) as answer:
                    await answer.read()
                    return answer.status

            calls = [asyncio.create_task(call()) for _ in range(256)]
            await engine.arrived(256, timeout=60)
            everybody.set()
            assert await asyncio.gather(*calls) == [200] * 256
