"""Models over several backends, and what is passed without being scheduled."""

from __future__ import annotations

import asyncio
import json

import pytest
from yarl import URL

from .fake_engine import FakeEngine, Reply, Seen, plain_answer
from .harness import HELLO, serve


async def test_models_are_the_union() -> None:
    async with (
        FakeEngine(models=("a", "both")) as one,
        FakeEngine(models=("both", "org/b")) as two,
        serve([one, two]) as served,
    ):
        for path in ("/v1/models", "/p/x/v1/models", "/v1/models/"):
            async with served.client.get(served.url + path) as answer:
                listed = await answer.json()
            assert listed["object"] == "list"
            assert sorted(entry["id"] for entry in listed["data"]) == ["a", "both", "org/b"]
        async with served.client.get(served.url + "/v1/models/org/b") as answer:
            assert await answer.json() == {"id": "org/b", "object": "model", "owned_by": "test"}
        async with served.client.get(served.url + "/v1/models/c") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
        async with served.client.get(served.url + "/p/no%20id/v1/models") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_request")


async def test_calls_go_where_their_model_is() -> None:
    async with (
        FakeEngine(models=("a",)) as one,
        FakeEngine(models=("b",)) as two,
        serve([one, two]) as served,
    ):
        for model, engine in (("a", one), ("b", two), ("a", one)):
            _, headers, _ = await served.chat({**HELLO, "model": model}, program="p")
            assert headers["X-Thunder-Backend"] == engine.id
            url = served.url + "/v1/embeddings"
            async with served.client.post(url, json={"model": model, "input": "x"}) as answer:
                assert answer.headers["X-Thunder-Backend"] == engine.id


async def test_a_model_that_every_fresh_list_lacks_is_unknown() -> None:
    async with FakeEngine(models=("a",)) as engine, serve([engine]) as served:
        status, _, answer = await served.chat({**HELLO, "model": "b"})
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (
            404,
            "model_not_found",
            "model",
        )
        assert not engine.seen
        assert not served.runtime.scheduler.programs


async def test_a_model_that_was_loaded_since_the_last_look_is_found() -> None:
    async with FakeEngine(models=("a",)) as engine, serve([engine]) as served:
        engine.models = ("a", "b")
        assert (await served.chat({**HELLO, "model": "b"}))[0] == 200


async def test_an_unknown_list_lacks_nothing() -> None:
    async with FakeEngine() as engine:
        engine.pages["/v1/models"] = "no json"
        async with serve([engine]) as served:
            assert (await served.chat({**HELLO, "model": "anything"}))[0] == 200


async def test_other_paths_pass_as_they_are() -> None:
    async def echo(seen: Seen, reply: Reply) -> None:
        await reply.body(
            seen.body or b"nothing", 203, content_type="x/y", x_seen=seen.method + " " + seen.target
        )

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = echo
        for method, path, target in (
            ("GET", "/v1/responses/resp_1?after=%2F", "/v1/responses/resp_1?after=%2F"),
            ("POST", "/tokenize", "/tokenize"),
            ("POST", "/p/x/tokenize", "/tokenize"),
            ("DELETE", "/p/x/v1/files/a%20b", "/v1/files/a%20b"),
            ("POST", "/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ):
            body = None if method == "GET" else b'{"prompt": 1.0}'
            url = URL(served.url + path, encoded=True)
            async with served.client.request(method, url, data=body) as answer:
                assert (answer.status, answer.headers["X-Seen"]) == (203, f"{method} {target}")
                assert await answer.read() == (body or b"nothing")
                assert (answer.content_type, answer.headers["X-Thunder-Backend"]) == ("x/y", engine.id)
        assert not served.runtime.scheduler.programs


async def test_what_passes_is_freed_of_what_is_ours() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = plain_answer
        headers = {"X-Thunder-Program-Id": "p", "X-Session-ID": "s"}
        body = {"input": "x", "program_id": "p", "stream": True}
        async with served.client.post(served.url + "/v1/embeddings", json=body, headers=headers) as answer:
            await answer.read()
        assert engine.seen[0].json == {"input": "x", "stream": True}
        assert engine.seen[0].header("X-Thunder-Program-Id") is None
        assert engine.seen[0].header("X-Session-ID") == "s"


async def test_a_passed_answer_that_breaks_is_seen_to_break() -> None:
    async def dies(seen: Seen, reply: Reply) -> None:
        await reply.stream_head(content_type="application/x-ndjson")
        await reply.chunk(b"{}\n")
        reply.die()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = dies
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        writer.write(b"GET /v1/lines HTTP/1.1\r\nHost: t\r\n\r\n")
        try:
            answered = await reader.read()
        except ConnectionError:
            answered = b""
        writer.close()
        assert not answered.endswith(b"0\r\n\r\n")


async def test_a_client_that_leaves_a_passed_call_cancels_it() -> None:
    async def hangs(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = hangs
        call = asyncio.create_task(served.stream({"input": "x"}, path="/v1/embeddings"))
        seen = await engine.arrived()
        call.cancel()
        async with asyncio.timeout(1.0):
            await seen.gone.wait()


async def test_passing_goes_elsewhere_when_refused() -> None:
    async with FakeEngine() as one, FakeEngine() as two, serve([one, two], poll_s=30.0) as served:
        await one.stop()
        async with served.client.post(
            served.url + "/v1/embeddings", data=json.dumps({"input": "x"})
        ) as answer:
            assert (answer.status, answer.headers["X-Thunder-Backend"]) == (200, two.id)
        await two.stop()
        async with served.client.post(served.url + "/v1/embeddings", data=b"{}") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "backend_error")


@pytest.mark.parametrize(
    ("silent", "status", "code"), [(False, 502, "backend_error"), (True, 504, "backend_timeout")]
)
async def test_what_is_passed_can_fail_too(silent: bool, status: int, code: str) -> None:
    async def fails(seen: Seen, reply: Reply) -> None:
        if silent:
            await asyncio.Event().wait()
        reply.die()

    async with FakeEngine() as engine, serve([engine], silence_s=0.05) as served:
        engine.answer = fails
        async with served.client.post(served.url + "/v1/embeddings", data=b"{}") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)


async def test_what_is_passed_goes_to_the_programs_own_backend_unless_that_is_drained() -> None:
    async with FakeEngine() as one, FakeEngine() as two, serve([one, two]) as served:
        home = (await served.chat(program="p"))[1]["X-Thunder-Backend"]
        headers = {"X-Thunder-Program-Id": "p"}
        for _ in range(2):
            async with served.client.post(served.url + "/tokenize", data=b"{}", headers=headers) as answer:
                assert answer.headers["X-Thunder-Backend"] == home
                assert answer.headers["X-Thunder-Program-Id"] == "p"
        served.runtime.drain_backend(home)
        async with served.client.post(served.url + "/tokenize", data=b"{}", headers=headers) as answer:
            assert answer.headers["X-Thunder-Backend"] != home
