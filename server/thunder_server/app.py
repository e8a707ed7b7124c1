"""The HTTP server: one application on one port, whose every refusal has the shape clients expect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

from thunder_server.errors import ApiError, from_http, internal_error

log = logging.getLogger(__name__)

_LARGEST_HEADER: Final = 16 << 10
_MOST_HEADERS: Final = 256
_LINGER_S: Final = 1.0
_BACKLOG: Final = 4096


_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Face(Protocol):
    """A part of the API: the data plane, the control plane, …"""

    def add_routes(self, app: web.Application) -> None: ...


async def _in_shape(request: web.BaseRequest, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as refusal:
        return refusal.response(request.path)
    except web.HTTPException as refusal:
        if refusal.status < 400:
            raise
        return from_http(refusal).response(request.path)
    except RequestPayloadError as broken:
        message = f"The request body breaks off or is malformed: {_first_line(str(broken))}."
        response = ApiError(400, "invalid_request", message).response(request.path)
        response.force_close()
        return response
    except ConnectionError:
        raise  # the client's: there is nobody to tell
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return internal_error().response(request.path)


def _shaped(handler: _Handler) -> _Handler:
    """Around the whole application: aiohttp refuses an ``Expect`` before any middleware sees it."""

    async def shaped(request: web.BaseRequest) -> web.StreamResponse:
        return await _in_shape(request, handler)

    return shaped


def make_app(faces: Iterable[Face]) -> web.Application:
    """The application of these faces. Unknown paths, wrong methods and faults are answered in shape too."""
    app = web.Application()
    for face in faces:
        face.add_routes(app)
    return app


class _Connection(RequestHandler):
    """One client connection. What is no HTTP, or too much of it, is refused in shape too."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and self._current_request is not None:
            message, _ = self._messages[-1]
            body = self._current_request.content
            if isinstance(message, _ErrInfo) and not body.is_eof():
                # The complaint is queued behind the very request whose body it is about, and whose handler
                # would wait for the rest of that body for ever.
                body.set_exception(RequestPayloadError(message.message))
                body.feed_eof()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone: aiohttp lets go of the connection without a word
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun already; nothing can be added to it")
        if status >= 500:
            log.error("a request failed outside all handlers", exc_info=exc)
            refusal = internal_error()
        elif isinstance(exc, LineTooLong) or "Too many" in (message or ""):
            refusal = ApiError(
                431,
                "request_header_fields_too_large",
                f"The request line or a header exceeds {_LARGEST_HEADER} bytes, or there are more than "
                f"{_MOST_HEADERS} headers.",
            )
        else:
            refusal = ApiError(
                400, "invalid_request", f"This is no valid HTTP request: {_first_line(message)}."
            )
        response = refusal.response()
        response.force_close()
        return response

    def _make_error_handler(
        self, err_info: _ErrInfo
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        answer = super()._make_error_handler(err_info)

        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            # Whatever else is on its way is not understood either. It is read and dropped for a moment:
            # closing on unread input makes the kernel reset the connection, and the answer would be lost.
            self.close()
            response = await answer(request)
            await response.prepare(request)
            await response.write_eof()
            if self.transport is not None and self.transport.can_write_eof():
                self.transport.write_eof()
            await asyncio.sleep(_LINGER_S)  # ends at once when the client closes
            return response

        return handler


class _Server(web.Server):
    """aiohttp's server with our connections."""

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Server(
            _shaped(plain.request_handler),
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
            loop=plain._loop,
            **plain._kwargs,
        )


@asynccontextmanager
async def start_server(
    app: web.Application, host: str = "127.0.0.1", port: int = 0, *, shutdown_s: float = 5.0
) -> AsyncGenerator[str]:
    """Serve ``app`` until the block is left; gives the URL of its root. ``port`` 0 takes a free one.

    Handlers of clients that leave are cancelled at once. On leaving, handlers get ``shutdown_s`` to end.
    Raises OSError if the port is taken.
    """
    runner = _Runner(
        app,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        shutdown_timeout=shutdown_s,
        max_line_size=_LARGEST_HEADER,
        max_field_size=_LARGEST_HEADER,
        max_headers=_MOST_HEADERS,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        bound_host, bound_port = runner.addresses[0][:2]
        yield f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


def _first_line(message: str | None) -> str:
    """aiohttp quotes the offending bytes on further lines; the first says what is wrong."""
    return (message or "it cannot be parsed").strip().split("\n")[0].rstrip(".: ")[:200]
