"""The official client, unchanged, through the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import openai
import pytest

from thunder_server.core.policies import CapSettings

from .fake_engine import FakeEngine, Reply, Seen, chunk_of
from .harness import Served, serve

MESSAGES = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_of(
    served: Served, path: str = "/v1", retries: int = 0
) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=served.url + path, api_key="mine", max_retries=retries) as client:
        yield client


async def test_chat_streams_and_models() -> None:
    async with FakeEngine() as engine, serve([engine]) as served, client_of(served, "/p/agent/v1") as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "one two three"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 100
        words, usages = [], []
        async for chunk in await client.chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
        ):
            words += [choice.delta.content for choice in chunk.choices]
            usages.append(chunk.usage)
        assert ("".join(word or "" for word in words), set(usages)) == ("one two three", {None})
        async for chunk in await client.chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
            stream_options={"include_usage": True},
        ):
            last = chunk
        assert last.usage is not None
        assert last.usage.completion_tokens == 7
        assert [model.id async for model in client.models.list()] == ["m"]
        view = served.view("agent")
        assert (view["tokens"]["prompt"], view["calls"]["total"], view["calls"]["cancelled"]) == (300, 3, 0)
        assert {seen.header("Authorization") for seen in engine.seen} == {"Bearer mine"}


async def test_errors_are_the_clients_own_classes() -> None:
    async with FakeEngine() as engine, serve([engine]) as served, client_of(served) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="x", messages=MESSAGES)  # type: ignore[arg-type]
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(
                model="m",
                messages=MESSAGES,  # type: ignore[arg-type]
                extra_body={"program_id": "a b"},
            )
        assert (bad.value.code, bad.value.param) == ("invalid_request", "program_id")
        engine.answer = dies_in_the_stream
        with pytest.raises(openai.APIError) as died:
            async for _ in await client.chat.completions.create(
                model="m",
                messages=MESSAGES,  # type: ignore[arg-type]
                stream=True,
            ):
                pass
        assert died.value.code == "backend_error"


async def dies_in_the_stream(seen: Seen, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(chunk_of("one") + b"\n\n" + b'data: {"choices"')
    reply.die()


async def test_comments_of_the_queue_do_not_disturb_it() -> None:
    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1), heartbeat_s=0.01) as served,
        client_of(served, "/p/second/v1") as client,
    ):
        await served.chat(program="first")
        stream = await client.chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
        )
        assert served.view("second")["calls"]["waiting"] == 1
        await served.chat(program="first", X_Thunder_Final="true")
        words = [choice.delta.content async for chunk in stream for choice in chunk.choices]
        assert words == ["one ", "two ", "three"]


async def test_its_retry_after_a_time_out_supersedes_the_first() -> None:
    async def hangs_once(seen: Seen, reply: Reply) -> None:
        if len(engine.seen) == 1:
            await asyncio.Event().wait()
        await reply.json({"choices": [{"message": {"role": "assistant", "content": "second"}}]})

    async with FakeEngine() as engine, serve([engine]) as served, client_of(served, retries=1) as client:
        engine.answer = hangs_once
        answer = await client.with_options(timeout=1.0).chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            extra_headers={"X-Thunder-Program-Id": "p"},
        )
        assert answer.choices[0].message.content == "second"
        assert engine.seen[0].gone.is_set()
        assert served.view("p")["calls"]["running"] == 0
