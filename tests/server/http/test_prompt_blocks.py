"""Tokens of prompts from ``/tokenize``: in time, late, or not at all; and replicas that disagree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from thunder_server import prompt_blocks
from thunder_server.backend_spec import BackendSpec
from thunder_server.backends.token_blocks import block_keys
from thunder_server.core.events import CallTokenized

from .fake_engine import FakeEngine, Reply, Seen, plain_answer
from .kv_publisher import Publisher, publishing, stored
from .whole import Whole, whole

LONG = "word " * 600
TOKENS = list(range(1000, 1130))


class Tokenizer:
    """An engine's answers: ``/tokenize`` as told, calls as always."""

    def __init__(self, tokens: list[int] = TOKENS) -> None:
        self.tokens = tokens
        self.hold: asyncio.Event | None = None
        self.asked: list[dict[str, Any]] = []
        self.broken: Any = None

    async def __call__(self, seen: Seen, reply: Reply) -> None:
        if seen.path != "/tokenize":
            await plain_answer(seen, reply)
            return
        self.asked.append(seen.json)
        if self.hold is not None:
            await self.hold.wait()
        if self.broken is not None:
            await reply.json(self.broken, 200 if isinstance(self.broken, dict) else 400)
        else:
            await reply.json({"count": len(self.tokens), "tokens": self.tokens, "max_model_len": 9999})


class Pair:
    """A server before one or two engines that publish what they cache."""

    def __init__(self, server: Whole, engines: list[FakeEngine], publishers: list[Publisher]) -> None:
        self.server = server
        self.engines = engines
        self.publishers = publishers
        self.tokenizers: list[Any] = [engine.answer for engine in engines]

    async def call(self, text: str = LONG, program: str = "p", **body: Any) -> int:
        """A call; what was predicted of it."""
        predicted: list[int] = []
        end = self.server.runtime.observe(lambda event, decided: self._note(program, predicted))
        try:
            messages = [{"role": "user", "content": text}]
            status, _ = await self.server.call(program, **{"messages": messages, **body})
        finally:
            end()
        assert status == 200
        return predicted[-1]

    def _note(self, program_id: str, predicted: list[int]) -> None:
        program = self.server.runtime.scheduler.program(program_id)
        calls = program.calls.values() if program else ()
        predicted += [call.predicted for call in calls if call.backend_id is not None]


@asynccontextmanager
async def pair(*tokenizers: Tokenizer, **settings: Any) -> AsyncGenerator[Pair]:
    async with contexts(len(tokenizers)) as (engines, publishers):
        for engine, tokenizer in zip(engines, tokenizers, strict=True):
            engine.answer = tokenizer
        specs = tuple(
            BackendSpec(url=e.url, kv_events=str(p.port), kv_events_replay=str(p.replay_port))
            for e, p in zip(engines, publishers, strict=True)
        )
        async with whole(engines, backend=specs, **{"tokenize_wait": 5.0, **settings}) as server:
            followed = server.runtime.kv_events
            await server.until(lambda: all(events.exact for events in followed.values()))
            for publisher in publishers:
                await publisher.followed()
            yield Pair(server, engines, publishers)


@asynccontextmanager
async def contexts(count: int) -> AsyncGenerator[tuple[list[FakeEngine], list[Publisher]]]:
    if not count:
        yield [], []
        return
    async with (
        publishing() as publisher,
        FakeEngine() as engine,
        contexts(count - 1) as (engines, publishers),
    ):
        yield [engine, *engines], [publisher, *publishers]


async def publish(f: Pair, tokens: list[int], which: int = 0) -> None:
    """The engine holds these tokens now, and the core knows it."""
    blocks = len(tokens) // 16
    await f.publishers[which].publish(stored(range(blocks), None, tokens[: blocks * 16], size=16))
    cache = f.server.runtime.scheduler.backends[f.engines[which].id].cache
    key = block_keys(tokens, 16)[-1]
    await f.server.until(lambda: key in cache.blocks)


async def test_a_prompt_is_matched_block_by_block():
    one = Tokenizer()
    async with pair(one) as f:
        await publish(f, TOKENS[:64])
        assert await f.call() == 64
        assert await f.call(program="q") == 64
        assert len(one.asked) == 1  # the same prompt again
        assert one.asked[0]["messages"][0]["content"] == LONG
        await publish(f, TOKENS)
        assert await f.call() == 128


async def test_short_prompts_and_plain_engines_are_not_asked():
    one = Tokenizer()
    async with pair(one) as f:
        await f.call("short")
        assert one.asked == []
    async with FakeEngine() as engine:
        engine.answer = one
        async with whole([engine]) as server:
            await server.call("p", messages=[{"role": "user", "content": LONG}])
            assert one.asked == []


async def test_an_answer_that_comes_late_is_told_to_the_core_and_serves_the_next_prompt():
    one = Tokenizer()
    one.hold = asyncio.Event()
    async with pair(one, tokenize_wait=0.01) as f:
        await publish(f, TOKENS[:64])
        told: list[CallTokenized] = []
        end = f.server.runtime.observe(
            lambda event, decided: told.append(event) if isinstance(event, CallTokenized) else None
        )
        assert await f.call() == 0
        assert f.server.runtime.prompt_blocks.late == 1
        one.hold.set()
        await f.server.until(lambda: told)
        end()
        one.hold = asyncio.Event()  # what begins with a prompt that is known needs no answer
        follow_up = [{"role": "user", "content": LONG}, {"role": "user", "content": "and?"}]
        assert await f.call(messages=follow_up) == 64
        one.hold.set()


@pytest.mark.parametrize("broken", [{"tokens": "many"}, {"tokens": [-1] * 40}, {}, "no"], ids=str)
async def test_answers_that_make_no_sense_are_done_without(broken):
    one = Tokenizer()
    one.broken = broken
    async with pair(one) as f:
        await f.call()
        assert f.server.runtime.prompt_blocks.failed == 1


async def test_an_engine_is_asked_a_few_things_at_once(monkeypatch: pytest.MonkeyPatch):
    one = Tokenizer()
    one.hold = asyncio.Event()
    async with pair(one, tokenize_wait=0.01) as f:
        for number in range(6):
            await f.call(f"{number} {LONG}")
        assert len(one.asked) <= 4
        one.hold.set()


async def test_what_is_known_of_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_blocks, "MOST_KEYS", 10)
    one = Tokenizer()
    async with pair(one) as f:
        for _ in range(2):
            await f.call()
            await f.call(f"other {LONG}")
        assert len(one.asked) == 4


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_effort": "high"},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "image_url"}]}]},
    ],
    ids=["effort", "tools", "image"],
)
async def test_prompts_whose_tokens_it_could_not_tell_are_not_asked_about(more):
    one = Tokenizer()
    async with pair(one) as f:
        await f.call(**more)
        assert one.asked == []


async def test_text_is_asked_about_as_text():
    one = Tokenizer()
    async with pair(one) as f:
        body = {"model": "m", "prompt": LONG, "add_special_tokens": False}
        status, _ = await f.server.ask("POST", "/v1/completions", body)
        assert status == 200
        assert one.asked == [body]
        status, _ = await f.server.ask("POST", "/v1/responses", {"model": "m", "input": LONG})
        assert status == 200
        assert len(one.asked) == 1


async def test_salted_prompts_are_found_among_salted_blocks():
    one = Tokenizer()
    async with pair(one) as f:
        await f.publishers[0].publish(
            stored([1, 2], None, TOKENS[:32], size=16, extra_keys=[["pepper"], None])
        )
        backend = f.server.runtime.scheduler.backends[f.engines[0].id]
        await f.server.until(lambda: len(backend.cache.blocks) == 2)
        assert await f.call(cache_salt="pepper") == 32
        assert await f.call(program="q") == 0


async def test_adapters_have_blocks_of_their_own():
    one = Tokenizer()
    async with pair(one) as f:
        models = {"data": [{"id": "m"}, {"id": "tuned", "parent": "m"}]}
        f.engines[0].pages["/v1/models"] = lambda seen, reply: reply.json(models)
        poller = f.server.runtime.backends[f.engines[0].id]
        await poller.refresh_models()
        await f.publishers[0].publish(stored([1], None, TOKENS[:16], size=16, lora_name="tuned"))
        await f.publishers[0].publish(
            stored([5], None, TOKENS[:16], size=16, extra_keys=[["tuned", "pepper"]], lora_name="tuned")
        )
        backend = f.server.runtime.scheduler.backends[f.engines[0].id]
        await f.server.until(lambda: len(backend.cache.blocks) == 2)
        assert await f.call(model="tuned") == 16
        assert await f.call(program="q", model="tuned", cache_salt="pepper") == 16
        assert await f.call(program="r") == 0


@pytest.mark.parametrize("how", ["tokens", "blocks"])
async def test_replicas_that_tokenize_differently_are_warned_of(how, caplog: pytest.LogCaptureFixture):
    one, two = Tokenizer(), Tokenizer([7, *TOKENS] if how == "tokens" else TOKENS)
    async with pair(one, two) as f:
        if how == "blocks":
            await f.publishers[0].publish(stored([1], None, TOKENS[:16], size=16))
            await f.publishers[1].publish(stored([1], None, TOKENS[:32], size=32))
            followed = f.server.runtime.kv_events.values()
            await f.server.until(lambda: {events.block_size for events in followed} == {16, 32})
        await f.call()
        second = f.server.runtime.kv_events[f.engines[1].id]
        await f.server.until(lambda: not second.trusted)
        said = "different tokens" if how == "tokens" else "blocks of different sizes"
        assert said in caplog.text
        second.start()
        assert not second.exact
        assert f.server.runtime.kv_events[f.engines[0].id].exact


async def test_replicas_that_agree_are_compared_once(caplog: pytest.LogCaptureFixture):
    one, two = Tokenizer(), Tokenizer()
    async with pair(one, two) as f:
        for number in range(4):
            await f.call(f"{number} {LONG}")
        await f.server.until(lambda: len(one.asked) + len(two.asked) == 6)
        assert "different" not in caplog.text


async def test_a_replica_that_cannot_be_compared_is_let_be():
    one, two = Tokenizer(), Tokenizer()
    two.broken = "no"
    async with pair(one, two) as f:
        await f.call()
        assert all(events.trusted for events in f.server.runtime.kv_events.values())
