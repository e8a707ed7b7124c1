"""Follows what one engine's prefix cache does, and tells the core.

Engines number their messages. One that is missing is asked for again at the replay endpoint; what cannot be
had any more leaves the picture incomplete, and the core is told so: then it believes what it was sent, as of
an engine that publishes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import zmq
import zmq.asyncio

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends.kv_wire import (
    END_OF_REPLAY,
    Cleared,
    Removed,
    Stored,
    read_batch,
)
from thunder_server.backends.token_blocks import ROOT, block_keys
from thunder_server.core.cached import MOST_BLOCKS
from thunder_server.core.events import Event, PrefixCleared, PrefixEvicted, PrefixStored, PrefixUnseen

log = logging.getLogger(__name__)

_REPLAY_S: Final = 5.0  # for each message of a replay: vLLM looks for requests ten times a second
_AGAIN_S: Final = 1.0
_HIGH_WATER: Final = 100_000
_SEQUENCE_BYTES: Final = 8


@dataclass(slots=True)
class Heard:
    """Totals, for metrics."""

    messages: int = 0
    replayed: int = 0
    lost: int = 0
    unreadable: int = 0
    unknown_blocks: int = 0  # stored after a block that was never told of
    last_at: float | None = None


class KvEvents:
    """The events of one backend. ``post`` is given what they mean for the core."""

    def __init__(self, spec: BackendSpec, post: Callable[[Event], object], now: Callable[[], float]) -> None:
        assert spec.kv_events is not None
        self.heard: Final = Heard()
        self.exact = False
        """Whether the core has been told all that there is."""
        self.trusted = True
        """Whether its blocks can be compared with those of prompts."""
        self.block_size: int | None = None
        """Tokens in a block; ``None`` before any was stored."""
        self._id: Final = spec.id
        self._endpoint: Final = spec.endpoint(spec.kv_events)
        self._replay: Final = spec.kv_events_replay and spec.endpoint(spec.kv_events_replay)
        self._post = post
        self._now = now
        self._keys: dict[Hashable, int] = {}  # of the blocks that are there, by the engine's own hashes
        self._copies: dict[Hashable, int] = {}  # how many more there are of those that there are several of
        self._next: int | None = None  # the sequence number to come; None: any
        self._live = False  # something has come since the replay
        self._task: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow from now on; again: as if for the first time, since the engine may be another one now."""
        if not self.trusted:
            return
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"KV events {self._id}")

    def distrust(self) -> None:
        """Its blocks cannot be compared with those of prompts: it is followed no longer."""
        self.trusted = False
        if self._task is not None:
            self._task.cancel()
        self._lost_sight()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            context = zmq.asyncio.Context()
            try:
                await self._follow(context)
            except (zmq.ZMQError, OSError) as failure:
                log.warning("KV events of backend %s at %s: %s", self._id, self._endpoint, failure)
            except Exception:
                log.exception("following the KV events of backend %s failed", self._id)
            finally:
                context.destroy(linger=0)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self, context: zmq.asyncio.Context) -> None:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        if "*" in self._endpoint:
            socket.bind(self._endpoint)
        else:
            socket.connect(self._endpoint)
        await self._begin(context)
        while True:
            await self._take(context, await socket.recv_multipart())
            await asyncio.sleep(0)  # a message that is there already is received without a turn of the loop

    # --- the order of messages -------------------------------------------------------------------------

    async def _begin(self, context: zmq.asyncio.Context) -> None:
        """Learn all that was told so far, if the engine still knows it."""
        self._next, self._live = None, False
        self._lost_sight()
        if self._replay is None:
            return
        try:
            async for sequence, payload in self._told_again(context, self._replay, 0):
                if sequence == 0:
                    self._sees_all()
                self._happened(sequence, payload)
            if self._next is None:  # nothing was told yet
                self._sees_all()
                self._next = 0
        except TimeoutError:
            log.warning("backend %s does not answer at its replay endpoint %s", self._id, self._replay)

    async def _take(self, context: zmq.asyncio.Context, frames: Sequence[bytes]) -> None:
        if len(frames) < 2 or len(frames[-2]) != _SEQUENCE_BYTES:
            self.heard.unreadable += 1
            return
        sequence, payload = int.from_bytes(frames[-2]), frames[-1]
        if self._next is not None and sequence < self._next:
            if not self._live:
                return  # it was in the replay already
            log.info("backend %s numbers its KV events anew: it was restarted", self._id)
            await self._begin(context)
        if self._next is None:
            if sequence == 0:
                self._sees_all()
        elif sequence > self._next:
            await self._fill_gap(context, self._next, sequence)
        if self._next is None or sequence >= self._next:
            self._happened(sequence, payload)
            self._live = True

    async def _fill_gap(self, context: zmq.asyncio.Context, start: int, until: int) -> None:
        """Messages from ``start`` to before ``until`` are missing."""
        following = start
        if self._replay is not None:
            try:
                async for sequence, payload in self._told_again(context, self._replay, start):
                    if sequence != following:
                        break
                    self.heard.replayed += 1
                    self._happened(sequence, payload)
                    following += 1
            except TimeoutError:
                pass
        if following < until:
            self.heard.lost += until - following
            log.warning("%d KV events of backend %s are lost", until - following, self._id)
            self._lost_sight()

    async def _told_again(
        self, context: zmq.asyncio.Context, endpoint: str, start: int
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Messages from ``start`` on, as far as the engine remembers. Raises TimeoutError."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.connect(endpoint)
            await socket.send_multipart((b"", start.to_bytes(_SEQUENCE_BYTES)))
            while True:
                async with asyncio.timeout(_REPLAY_S):
                    *_, sequence, payload = await socket.recv_multipart()
                if sequence == END_OF_REPLAY:
                    return
                yield int.from_bytes(sequence), payload
                await asyncio.sleep(0)
        finally:
            socket.close(linger=0)

    # --- what they say ---------------------------------------------------------------------------------

    def _happened(self, sequence: int, payload: bytes) -> None:
        self._next = sequence + 1
        self.heard.messages += 1
        self.heard.last_at = self._now()
        try:
            for event in read_batch(payload):
                match event:
                    case Stored():
                        self._stored(event)
                    case Removed(hashes=hashes):
                        self._removed(hashes)
                    case Cleared():
                        self._sees_all()
        except ValueError as wrong:
            self.heard.unreadable += 1
            if self.exact:
                log.warning("backend %s: KV events that make no sense: %s", self._id, wrong)
                self._lost_sight()

    def _stored(self, event: Stored) -> None:
        self.block_size = event.block_size
        after = ROOT if event.parent is None else self._keys.get(event.parent)
        if after is None or len(self._keys) > MOST_BLOCKS:
            self.heard.unknown_blocks += len(event.hashes)
            return
        keys = block_keys(event.tokens, event.block_size, after=after, extras=event.extras)
        for name, key in zip(event.hashes, keys, strict=True):
            if name in self._keys:
                self._copies[name] = self._copies.get(name, 0) + 1
            else:
                self._keys[name] = key
        self._post(PrefixStored(at=self._now(), backend_id=self._id, keys=keys))

    def _removed(self, hashes: Sequence[Hashable]) -> None:
        gone: list[int] = []
        for name in hashes:
            more = self._copies.pop(name, 0)
            if more > 1:
                self._copies[name] = more - 1
            elif not more and (key := self._keys.pop(name, None)) is not None:
                gone.append(key)
        if gone:
            self._post(PrefixEvicted(at=self._now(), backend_id=self._id, keys=gone))

    def _sees_all(self) -> None:
        """The cache is empty, and all that will be in it will be told."""
        self._keys.clear()
        self._copies.clear()
        self.exact = True
        self._post(PrefixCleared(at=self._now(), backend_id=self._id, exact=True))

    def _lost_sight(self) -> None:
        """Something was not told: what is known of the cache may not be true any more."""
        self._keys.clear()
        self._copies.clear()
        self.exact = False
        self._post(PrefixUnseen(at=self._now(), backend_id=self._id))
