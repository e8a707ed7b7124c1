"""Transports that tag what passes through them, around whatever transport a client has.

They need nothing of httpx itself, so the same two classes serve httpx and httpx2.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from thunder_sdk._tagging import answered, tag


class _Around:
    """Stands in for `inner`; what it does not define itself is the inner one's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not set yet: being copied or unpickled
            raise AttributeError(name)
        return getattr(self._inner, name)


class TaggingTransport(_Around):
    """For synchronous clients."""

    def handle_request(self, request: Any) -> Any:
        tagged = tag(request)
        response = self._inner.handle_request(request)
        if tagged:
            answered(request, response.headers)
        return response

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class AsyncTaggingTransport(_Around):
    """For asynchronous clients."""

    async def handle_async_request(self, request: Any) -> Any:
        tagged = tag(request)
        response = await self._inner.handle_async_request(request)
        if tagged:
            answered(request, response.headers)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


def install(client: Any) -> None:
    """Puts tagging transports around those of an httpx or httpx2 client, mounts and proxies too. Once."""
    if isinstance(client._transport, _Around):
        return
    around = AsyncTaggingTransport if hasattr(client, "aclose") else TaggingTransport
    for pattern, mounted in client._mounts.items():
        if mounted is not None:
            client._mounts[pattern] = around(mounted)
    client._transport = around(client._transport)
