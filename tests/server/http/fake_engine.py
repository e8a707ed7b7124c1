"""An engine that does what a test tells it, on a real socket.

It is written against raw asyncio streams, so that it can also do what no HTTP framework would: die in the
middle of a chunk, answer garbage, hang, split an event at any byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["Seen", "Reply"], Awaitable[None]]


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the proxy closed the connection before the answer was complete."""

    @property
    def path(self) -> str:
        return self.target.split("?")[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Reply:
    """What a test's script writes with."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, reason: str = "OK", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def json(self, value: Any, status: int = 200, **headers: str) -> None:
        await self.body(json.dumps(value).encode(), status, content_type="application/json", **headers)

    async def body(self, body: bytes, status: int = 200, **headers: str) -> None:
        await self.head(status, content_length=str(len(body)), **headers)
        await self.raw(body)

    async def stream_head(self, status: int = 200, **headers: str) -> None:
        headers = {"content_type": "text/event-stream", **headers}
        await self.head(status, transfer_encoding="chunked", **headers)

    async def chunk(self, data: bytes) -> None:
        if data:
            await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def die(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()


def chunk_of(text: str, index: int = 0) -> bytes:
    delta = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}
    return (
        b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "model": "m", **delta}).encode()
    )


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def usage_chunk(usage: Any = USAGE) -> bytes:
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [], "usage": usage}).encode()


async def plain_answer(seen: Seen, reply: Reply) -> None:
    """What an engine does: JSON, or a stream of three words, usage if asked for, ``[DONE]``."""
    if seen.body and seen.json.get("stream"):
        await reply.stream_head()
        for word in ("one ", "two ", "three"):
            await reply.chunk(chunk_of(word) + b"\n\n")
        if (seen.json.get("stream_options") or {}).get("include_usage"):
            await reply.chunk(usage_chunk() + b"\n\n")
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()
    else:
        await reply.json(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "one two three"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": USAGE,
            }
        )


class FakeEngine:
    """``answer`` serves calls; ``pages`` are what ``GET``s get: text or a script. All is kept in ``seen``."""

    def __init__(self, *, blocks: int | None = 1025, models: tuple[str, ...] = ("m",)) -> None:
        self.answer: Answer = plain_answer
        self.seen: list[Seen] = []
        self.models = models
        self.pages: dict[str, str | Answer] = {"/health": ""}
        if blocks is not None:
            self.capacity(blocks)
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def capacity(self, blocks: int, block_size: int = 16) -> None:
        """Tell ``(blocks - 1) * block_size`` tokens on /metrics."""
        self.pages["/metrics"] = (
            f'vllm:cache_config_info{{block_size="{block_size}",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0\n'
            'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
        )

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(limit=1 << 27), self._connected), "127.0.0.1", port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if the process were killed: nothing listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> FakeEngine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def arrived(self, count: int = 1, timeout: float = 5.0) -> Seen:
        """The ``count``-th call, once it has arrived."""
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: len(self.seen) >= count)
        return self.seen[count - 1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (seen := await _read(reader)) is not None:
                await self._serve(seen, reader, Reply(writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, reply: Reply) -> None:
        if seen.method == "GET" and seen.path == "/v1/models" and seen.path not in self.pages:
            listed = [{"id": model, "object": "model", "owned_by": "test"} for model in self.models]
            return await reply.json({"object": "list", "data": listed})
        page = self.pages.get(seen.path) if seen.method == "GET" else None
        if isinstance(page, str):
            return await reply.body(page.encode(), content_type="text/plain")
        script: Answer
        if page is not None:
            script = page
        elif seen.method == "GET" and seen.path in ("/health", "/metrics"):
            return await reply.body(b"", 404)
        else:
            script = self.answer
            async with self._arrived:
                self.seen.append(seen)
                self._arrived.notify_all()
        answering = asyncio.ensure_future(script(seen, reply))
        assert isinstance(reader, _Reader)
        watching = asyncio.ensure_future(reader.closed.wait())
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                seen.gone.set()
                answering.cancel()
                raise ConnectionResetError
            await answering
        finally:
            answering.cancel()
            watching.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)


class _Reader(asyncio.StreamReader):
    """Tells when the other side has closed, also while nobody reads."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit, loop=asyncio.get_running_loop())
        self.closed = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.closed.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)
        self.closed.set()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    seen = Seen(method, target, headers, b"")
    if (length := seen.header("content-length")) is not None:
        seen.body = await reader.readexactly(int(length))
    elif (seen.header("transfer-encoding") or "") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            seen.body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    return seen


@asynccontextmanager
async def engines(count: int, **options: Any) -> AsyncGenerator[list[FakeEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeEngine(**options)) for _ in range(count)]
