"""Calls through the data plane, over real sockets."""

from __future__ import annotations

from .fake_engine import FakeEngine
from .harness import HELLO, STREAM, serve


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
