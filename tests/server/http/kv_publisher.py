"""An engine's KV events on real ZMQ sockets, as vLLM publishes them: a PUB for what happens, a ROUTER for
what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def stored(
    hashes: Sequence[Any], parent: Any, tokens: Sequence[int], size: int = 4, **more: Any
) -> dict[str, Any]:
    """The newer form: a map with its type. ``None`` where vLLM leaves fields out that have their default."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def as_array(event: dict[str, Any]) -> list[Any]:
    """The older form: an array that begins with its type."""
    return list(event.values())


class Publisher:
    def __init__(self, context: zmq.asyncio.Context, *, replays: bool = True) -> None:
        # An XPUB is a PUB that hears who subscribes: nothing has to be guessed about when.
        self._pub = context.socket(zmq.XPUB)
        self.port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._replay = context.socket(zmq.ROUTER)
        self.replay_port = self._replay.bind_to_random_port("tcp://127.0.0.1")
        self.replays = replays
        self.buffer: list[tuple[int, bytes]] = []
        self.sequence = 0
        self.asked_from: list[int] = []

    async def followed(self) -> None:
        """Somebody has subscribed."""
        async with asyncio.timeout(10):
            while (await self._pub.recv())[:1] != b"\x01":
                pass

    async def publish(self, *events: Any, lose: bool = False, forget: bool = False) -> None:
        """One batch. ``lose``: it does not arrive; ``forget``: nor is it told again."""
        payload = msgspec.msgpack.encode([0.0, list(events), 0])
        await self.send(payload, lose=lose, forget=forget)

    async def send(self, payload: bytes, *, lose: bool = False, forget: bool = False) -> None:
        sequence, self.sequence = self.sequence, self.sequence + 1
        if not forget:
            self.buffer.append((sequence, payload))
        if not lose:
            await self._pub.send_multipart((b"", sequence.to_bytes(8), payload))

    async def raw(self, *frames: bytes) -> None:
        await self._pub.send_multipart(frames)

    async def serve_replays(self) -> None:
        while True:
            client, empty, start = await self._replay.recv_multipart()
            self.asked_from.append(int.from_bytes(start))
            if not self.replays:
                continue
            for sequence, payload in self.buffer:
                if sequence >= int.from_bytes(start):
                    frames = (client, empty, b"", sequence.to_bytes(8), payload)
                    await self._replay.send_multipart(frames)
            await self._replay.send_multipart((client, empty, b"", END, b""))


@asynccontextmanager
async def publishing(**options: Any) -> AsyncGenerator[Publisher]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context, **options)
    serving = asyncio.create_task(publisher.serve_replays())
    try:
        yield publisher
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        context.destroy(linger=0)
