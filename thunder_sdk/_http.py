"""One kept-alive connection to the server's control plane.

The standard library's client is enough for one thread and one request at a time, and it is imported with the
SDK: a child forked while some thread imports a larger one could never import that again.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else the first look-up of a host name imports it
import http.client
import json
import os
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from thunder_sdk._config import Verify


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: `body` is the decoded JSON object, {} if it was none."""

    status: int
    body: Mapping[str, object]


class Connection:
    """Sends one request after the other. Not thread-safe; errors are OSError or HTTPException."""

    def __init__(self, root: str, *, api_key: str | None, verify: Verify, timeout: float) -> None:
        self.root = root
        parts = urlsplit(root)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port
        self._prefix = parts.path
        self._verify = verify
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json", "User-Agent": "thunder-sdk"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, payload: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Blocks for at most the time-out per network operation."""
        body = None if payload is None else json.dumps(payload).encode()
        sent = {**self._headers, **(headers or {})}
        if self._connection is not None:
            # The server may have closed an idle connection; that is no outage. All requests may be repeated.
            with suppress(ConnectionError, http.client.BadStatusLine, ssl.SSLError):
                return self._exchange(self._connection, method, path, body, sent)
        self._connection = self._connect()
        return self._exchange(self._connection, method, path, body, sent)

    def close(self) -> None:
        """Closes the socket; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def abort(self) -> None:
        """From another thread: has the request that is under way fail at once."""
        sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def disown(self) -> None:
        """In a forked child: closes its copy of the descriptor, which says nothing to the server.

        Not by `close`: the reader of the response has a lock, whose holder may not be in the child.
        """
        sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            with suppress(OSError):
                os.close(sock.detach())

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        try:
            connection.request(method, self._target + path, body, headers)
            response = connection.getresponse()
            raw = response.read()
        except BaseException:
            self.close()  # half an exchange leaves it fit for nothing
            raise
        if response.will_close:
            self.close()
        try:
            decoded = json.loads(raw)
        except ValueError:
            decoded = None
        return Answer(response.status, decoded if isinstance(decoded, dict) else {})

    def _connect(self) -> http.client.HTTPConnection:
        self._target = self._prefix
        proxy = self._proxy()
        if self._scheme == "https":
            tls = http.client.HTTPSConnection(
                *(proxy or (self._host, self._port)), timeout=self._timeout, context=self._tls()
            )
            if proxy is not None:
                tls.set_tunnel(self._host, self._port)
            return tls
        if proxy is not None:
            self._target = self.root
            return http.client.HTTPConnection(*proxy, timeout=self._timeout)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _proxy(self) -> tuple[str, int | None] | None:
        """The proxy the usual variables name, which the data plane's client obeys as well."""
        url = urllib.request.getproxies_environment().get(self._scheme)
        netloc = urlsplit(self.root).netloc
        if not url or urllib.request.proxy_bypass_environment(netloc):  # type: ignore[attr-defined]
            return None
        parts = urlsplit(url if "://" in url else f"//{url}")
        return parts.hostname or "", parts.port

    def _tls(self) -> ssl.SSLContext:
        if isinstance(self._verify, ssl.SSLContext):
            return self._verify
        context = ssl.create_default_context(cafile=self._verify if isinstance(self._verify, str) else None)
        if self._verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
