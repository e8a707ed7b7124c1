"""Routing through the whole server: prompts are recognised, shadow mode talks, tokenizers are compared."""

from __future__ import annotations

import logging

import pytest

from .fake_engine import FakeEngine, Reply, Seen, engines
from .whole import Whole, whole

LONG = "word " * 2000


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


async def where(server: Whole, program: str) -> str:
    return (await server.program(program))["backend"]


async def metric(server: Whole, line: str) -> bool:
    async with server.http.get(server.url + "/metrics") as answer:
        return line in await answer.text()


def counting(tokens: int):
    async def answer(seen: Seen, reply: Reply) -> None:
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        await reply.json({"object": "chat.completion", "choices": [], "usage": usage})

    return answer


async def test_programs_that_begin_alike_meet_and_why_tells_what_was_expected():
    async with engines(2) as both:
        for engine in both:
            engine.answer = counting(2500)
        async with whole(both) as server:
            await server.call("p1", messages=messages(LONG, "one"))
            await server.call("p2", messages=messages(LONG, "two"))
            assert await where(server, "p1") == await where(server, "p2")
            status, why = await server.ask("GET", "/thunder/v1/programs/p2/why")
            assert status == 200
            assert "0 tokens of its prompt were cached" in why["reason"]
            assert "had been expected" in why["reason"]
            backend = await where(server, "p2")
            assert await metric(server, f'thunder_prefix_predictions_total{{backend="{backend}"}} 2.0')


async def test_in_shadow_mode_the_log_the_stream_and_the_metrics_tell(caplog: pytest.LogCaptureFixture):
    async with engines(2) as both:
        for engine in both:
            engine.answer = counting(2500)
        with caplog.at_level(logging.INFO, "thunder_server.runtime"):
            async with whole(both, shadow=True) as server:
                await server.call("p1", messages=messages(LONG, "one"))
                await server.call("p2", messages=messages(LONG, "two"))
                assert await where(server, "p1") != await where(server, "p2")
                assert await metric(server, 'thunder_shadow_decisions_total{verdict="differed"} 1.0')
                assert await metric(server, 'thunder_shadow_decisions_total{verdict="agreed"} 1.0')
        assert "shadow: program p2 went to" in caplog.text


async def test_replicas_that_count_the_same_prompt_differently_are_warned_of(
    caplog: pytest.LogCaptureFixture,
):
    async with FakeEngine() as one, FakeEngine() as other:
        one.answer, other.answer = counting(2500), counting(2600)
        async with whole([one, other], policy="passthrough") as server:
            for program in ("p1", "p2"):
                await server.call(program, messages=messages(LONG))
            assert await where(server, "p1") != await where(server, "p2")
        assert "count different tokens in the same prompt" in caplog.text
