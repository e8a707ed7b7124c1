"""The way to the engines: one HTTP client session, what crosses the proxy, and how that way can fail.

Foreign exceptions end here: callers see `ConnectFailed`, `BackendFailed` and `BackendTimedOut`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from thunder_server.backend_spec import BackendSpec

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SET_ANEW: Final = frozenset({"host", "content-length", "expect"})
_NOTHING_ADDED: Final = frozenset({"Accept", "Accept-Encoding", "Content-Type", "User-Agent"})
_CONNECT_S: Final = 5.0
_IDLE_CONNECTION_S: Final = 4.0  # uvicorn closes at 5 s; a request sent into that would be lost
_LARGEST_HEADER: Final = 1 << 16


class UpstreamError(Exception):
    """A backend did not do its part. The text says what happened, for users."""


class ConnectFailed(UpstreamError):
    """No connection: not a byte of the request has left."""


class BackendFailed(UpstreamError):
    """The connection broke, or what came was no HTTP."""


class BackendTimedOut(UpstreamError):
    """Nothing came for too long."""


def _keepalive_socket(address: tuple[object, ...]) -> socket.socket:
    """TCP keep-alive finds a peer that vanished without a word within half a minute."""
    family, kind, proto, _, _ = address
    made = socket.socket(family, kind, proto)  # type: ignore[arg-type]
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made


def make_session() -> aiohttp.ClientSession:
    """A session that adds nothing, keeps nothing (cookies are the clients'), and decodes nothing."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_IDLE_CONNECTION_S, ttl_dns_cache=10, socket_factory=_keepalive_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_NOTHING_ADDED,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        max_line_size=_LARGEST_HEADER,
        max_field_size=_LARGEST_HEADER,
    )


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Those of ``headers`` that concern the two ends, not one connection; in order, duplicates kept."""
    named = headers.get("Connection", "")
    dropped = _HOP_BY_HOP | {token.strip().lower() for token in named.split(",")} if named else _HOP_BY_HOP
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def request_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """What of a client's headers goes to an engine: neither ours nor the connection's."""
    kept = end_to_end(headers)
    for name in {name for name in kept if name.lower() in _SET_ANEW or name.lower().startswith("x-thunder-")}:
        kept.popall(name, None)
    return kept


async def send(
    http: aiohttp.ClientSession,
    backend: BackendSpec,
    method: str,
    target: str,
    headers: CIMultiDict[str],
    body: bytes,
    *,
    silence_s: float,
) -> aiohttp.ClientResponse:
    """Send one request; returns when the head of the answer is there. The caller closes the answer.

    ``target`` (path and query) goes out as it is. The backend's own key takes the place of the client's. No
    more than ``silence_s`` seconds may pass without a byte. Raises `UpstreamError`.
    """
    if backend.api_key is not None:
        headers = headers.copy()
        headers["Authorization"] = f"Bearer {backend.api_key.get_secret_value()}"
    try:
        return await http.request(
            method,
            URL(backend.url + target, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s),
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
        raise ConnectFailed("The backend cannot be connected to.") from failure
    except (TimeoutError, aiohttp.ClientError, OSError) as failure:
        raise failed(failure) from failure


async def next_chunk(answer: aiohttp.ClientResponse) -> bytes:
    """More of the body as it comes, still encoded as the engine encoded it; empty at its clean end. Raises
    `UpstreamError`."""
    try:
        return await answer.content.readany()
    except (TimeoutError, aiohttp.ClientError, OSError) as failure:
        raise failed(failure) from failure


def failed(failure: Exception) -> UpstreamError:
    if isinstance(failure, TimeoutError):
        return BackendTimedOut("The backend did not answer in time.")
    if isinstance(failure, aiohttp.ClientResponseError):
        return BackendFailed("The backend answered with something that is not HTTP.")
    return BackendFailed("The backend closed the connection before its answer was complete.")
