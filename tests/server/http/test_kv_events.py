"""What engines publish of their caches, over real sockets, up to what it predicts of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends import kv_events
from thunder_server.backends.kv_wire import Removed, Stored, read_batch
from thunder_server.backends.token_blocks import block_keys
from thunder_server.core.cached import Cached

from .fake_engine import FakeEngine
from .kv_publisher import CLEARED, Publisher, as_array, publishing, removed, stored
from .whole import Whole, whole

TOKENS = list(range(100, 140))


class Followed:
    """A server that follows one engine."""

    def __init__(self, server: Whole, engine: FakeEngine, publisher: Publisher) -> None:
        self.server = server
        self.engine = engine
        self.publisher = publisher
        self.events = server.runtime.kv_events[engine.id]

    @property
    def cache(self) -> Cached:
        return self.server.runtime.scheduler.backends[self.engine.id].cache

    async def until(self, holds: Any) -> None:
        await self.server.until(holds)

    async def holds(self, tokens: int) -> None:
        """Until this many of TOKENS are known to be cached."""
        await self.until(lambda: self.cached() == tokens)

    def cached(self) -> int:
        keys = block_keys(TOKENS, 4)
        reach = 0
        while reach < len(keys) and keys[reach] in self.cache.blocks:
            reach += 1
        return 4 * reach


@asynccontextmanager
async def following(*, replay: bool = True, **options: Any) -> AsyncGenerator[Followed]:
    async with publishing(**options) as publisher, FakeEngine() as engine:
        spec = BackendSpec(
            url=engine.url,
            kv_events=f"tcp://127.0.0.1:{publisher.port}",
            kv_events_replay=str(publisher.replay_port) if replay else None,
        )
        async with whole([engine], backend=(spec,)) as server:
            followed = Followed(server, engine, publisher)
            await publisher.followed()
            if replay and publisher.replays:
                await followed.until(lambda: followed.events.exact)
            yield followed


@pytest.mark.parametrize("form", [dict, as_array], ids=["map", "array"])
async def test_blocks_come_and_go(form):
    async with following() as f:
        await f.publisher.publish(form(stored([1, 2, 3], None, TOKENS[:12])))
        await f.holds(12)
        await f.publisher.publish(form(stored([4], 3, TOKENS[12:16])), form(removed(4)))
        await f.publisher.publish(form(stored([b"x" * 32], 3, TOKENS[12:16])), form(removed(3)))
        await f.holds(8)
        assert f.events.block_size == 4
        await f.publisher.publish(form(CLEARED))
        await f.holds(0)
        assert f.events.exact
        assert f.cache.exact


async def test_what_was_told_before_we_came_is_told_again():
    async with publishing() as publisher:
        await publisher.publish(stored([1], None, TOKENS[:4]))
        await publisher.publish(stored([2], 1, TOKENS[4:8]))
        async with FakeEngine() as engine:
            spec = BackendSpec(
                url=engine.url, kv_events=str(publisher.port), kv_events_replay=str(publisher.replay_port)
            )
            async with whole([engine], backend=(spec,)) as server:
                f = Followed(server, engine, publisher)
                await f.holds(8)
                assert f.events.exact


async def test_what_was_missed_is_asked_for_again():
    async with following() as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        await f.publisher.publish(stored([2], 1, TOKENS[4:8]), lose=True)
        await f.publisher.publish(stored([3], 2, TOKENS[8:12]))
        await f.holds(12)
        assert f.publisher.asked_from == [0, 1]
        assert f.events.exact
        assert f.events.heard.replayed == 2
        await f.publisher.publish(removed(3))
        await f.holds(8)


async def test_what_is_lost_for_good_leaves_the_picture_incomplete(caplog: pytest.LogCaptureFixture):
    async with following() as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        await f.publisher.publish(stored([2], 1, TOKENS[4:8]), lose=True, forget=True)
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.until(lambda: f.events.heard.lost == 1)
        assert not f.events.exact
        await f.publisher.publish(stored([9], 77, TOKENS[:4]))
        await f.until(lambda: f.events.heard.unknown_blocks == 1)
        assert not f.cache.exact
        assert "1 KV events" in caplog.text
        await f.publisher.publish(CLEARED)
        await f.until(lambda: f.events.exact)


async def test_without_a_replay_endpoint_only_the_beginning_will_do():
    async with following(replay=False) as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        assert f.events.exact
        await f.publisher.publish(stored([2], 1, TOKENS[4:8]), lose=True)
        await f.publisher.publish(stored([3], None, TOKENS[:4]))
        await f.until(lambda: f.events.heard.lost == 1)
        assert not f.events.exact


async def test_a_replay_endpoint_that_says_nothing_holds_nothing_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_events, "_REPLAY_S", 0.05)
    async with following(replays=False) as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        assert f.events.exact  # it was the first message of all
        await f.publisher.publish(CLEARED, lose=True)
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.until(lambda: f.events.heard.lost == 1)


async def test_an_engine_that_was_restarted_begins_anew():
    async with following() as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.publisher.publish(stored([2], 1, TOKENS[4:8]))
        await f.holds(8)
        f.publisher.sequence, f.publisher.buffer = 0, []
        await f.publisher.publish(stored([3], None, TOKENS[:4]))
        await f.holds(4)
        assert f.events.exact


async def test_an_engine_that_was_down_is_followed_anew():
    async with following() as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        f.engine.pages["/health"] = lambda seen, reply: reply.body(b"", 503)
        await f.until(lambda: not f.server.runtime.healthy_backends)
        await f.until(lambda: f.cached() == 0)
        f.engine.pages["/health"] = ""
        await f.holds(4)
        assert f.cache.exact


async def test_copies_of_a_block_go_one_by_one():
    async with following() as f:
        one = stored([1], None, TOKENS[:4])
        await f.publisher.publish(one, one, one, removed(1))
        await f.publisher.publish(removed(1), stored([2], 1, TOKENS[4:8]))
        await f.holds(8)
        await f.publisher.publish(removed(2), removed(1), removed(99))
        await f.holds(0)


async def test_garbage_is_counted_and_leaves_the_picture_incomplete():
    async with following() as f:
        await f.publisher.raw(b"alone")
        await f.publisher.raw(b"", b"short", b"")
        await f.publisher.send(b"\xc1 no msgpack")
        await f.until(lambda: f.events.heard.unreadable == 3)
        assert not f.events.exact
        await f.publisher.send(b"\xc1 no msgpack")
        await f.publisher.publish(stored([1], None, ["no", "tokens", "at", "all"]))
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)


async def test_an_endpoint_that_cannot_be_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kv_events, "_AGAIN_S", 0.01)
    async with FakeEngine() as engine:
        spec = BackendSpec(url=engine.url, kv_events="ipc:///no/such/*/place")
        with caplog.at_level(logging.WARNING):
            async with whole([engine], backend=(spec,)):
                async with asyncio.timeout(5):
                    while caplog.text.count("KV events of backend") < 2:
                        await asyncio.sleep(0.01)


async def test_removing_a_backend_ends_following_it():
    async with following() as f:
        status, _ = await f.server.ask("DELETE", f"/thunder/v1/backends/{f.engine.id}")
        assert status == 200
        assert not f.server.runtime.kv_events


async def test_metrics_tell_how_well_it_is_known():
    async with following() as f:
        await f.publisher.publish(stored([1], None, TOKENS[:4]))
        await f.holds(4)
        async with f.server.http.get(f.server.url + "/metrics") as answer:
            page = await answer.text()
        for line in (
            f'thunder_kv_events_exact{{backend="{f.engine.id}"}} 1.0',
            f'thunder_kv_events_messages_total{{backend="{f.engine.id}"}} 1.0',
            f'thunder_prefix_predictions_total{{backend="{f.engine.id}"}} 0.0',
            'thunder_shadow_decisions_total{verdict="agreed"} 0.0',
            "thunder_kv_events_age_seconds",
        ):
            assert line in page, line


# --- the wire format


def test_what_is_not_on_the_gpu_is_passed_over():
    events = [
        stored([1], None, [1, 2, 3, 4], medium="CPU"),
        stored([1], None, [1, 2, 3, 4], group_idx=1),
        stored([1], None, [1, 2, 3, 4], locality="REMOTE"),
        removed(1, medium="CPU"),
        {"type": "BlockAdmired"},
        removed(2, group_idx=0),
    ]
    assert read_batch(msgspec.msgpack.encode([0.0, events])) == [Removed((2,))]


def test_adapters_and_salts_tell_blocks_apart():
    def read(event: object) -> Stored:
        (one,) = read_batch(msgspec.msgpack.encode([0.0, [event], 0]))
        assert isinstance(one, Stored)
        return one

    plain, salted, adapted, older = (
        read(stored([1], None, [1, 2, 3, 4], **more))
        for more in ({}, {"extra_keys": [["salt"]]}, {"lora_name": "l"}, {"lora_id": 7})
    )
    keys = {block_keys(one.tokens, 4, extras=one.extras)[0] for one in (plain, salted, adapted, older)}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "batch",
    [
        None,
        [],
        [0.0],
        [0.0, 7],
        [0.0, [[]]],
        [0.0, [{"kind": "BlockStored"}]],
        [0.0, [{"type": "BlockStored", "block_hashes": [1]}]],
        [0.0, [stored([1, 2], None, [1, 2, 3, 4])]],
        [0.0, [stored([1], None, [1, 2], size=0)]],
        [0.0, [stored([1], None, [1, 2, 3, 4], size=4.0)]],
        [0.0, [stored([1], None, ["a", "b", "c", "d"])]],
        [0.0, [stored([1], None, [-1, 2, 3, 4])]],
    ],
)
def test_what_makes_no_sense_is_refused(batch):
    def read() -> None:
        for event in read_batch(msgspec.msgpack.encode(batch)):
            assert isinstance(event, Stored)
            block_keys(event.tokens, event.block_size)

    with pytest.raises(ValueError):
        read()
