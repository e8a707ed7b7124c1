"""What the outside watches: health, metrics, and the stream of transitions."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from thunder_sdk import wire
from thunder_server.auth import Keys
from thunder_server.errors import invalid
from thunder_server.runtime import Runtime
from thunder_server.stream import Stream
from thunder_server.telemetry import Telemetry

KEEP_ALIVE_S: Final = 15.0
"""How often a silent stream says that it lives: proxies in between cut idle connections at 30 s and more."""
WRITE_S: Final = 60.0
"""How long a listener may take nothing at all before it is let go."""


class Observation:
    """``/healthz``, ``/readyz``, ``/metrics`` and ``/thunder/v1/stream`` of one server."""

    def __init__(
        self,
        runtime: Runtime,
        keys: Keys,
        policy: str,
        *,
        open_metrics: bool = False,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._runtime = runtime
        self._keys = keys
        self._open_metrics = open_metrics
        self._keep_alive_s = keep_alive_s
        self._telemetry = Telemetry(runtime, policy)
        self._stream = Stream(first_id=int(runtime.unix(runtime.now()) * 1e6))
        runtime.observe(self._telemetry.observe)
        runtime.observe(self._stream.observe)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get(wire.CONTROL_PREFIX + "/stream", self.stream)
        app.on_shutdown.append(self._close)

    async def _close(self, app: web.Application) -> None:
        self._stream.close()

    async def healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        backends = self._runtime.scheduler.backends
        healthy = sum(backend.healthy for backend in backends.values())
        ready = healthy > 0 and not self._runtime.stopping
        body = {
            "status": "ready" if ready else "stopping" if self._runtime.stopping else "no healthy backend",
            "healthy_backends": healthy,
            "backends": len(backends),
        }
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        if not self._open_metrics:
            self._keys.require(request.headers)
        body, content_type = self._telemetry.scrape(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self._keys.require(request.headers)
        cursor = self._cursor(request)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        frames = b": every transition from here on\n\n"
        try:
            while not self._stream.closed:
                async with asyncio.timeout(WRITE_S):
                    await response.write(frames)
                await self._stream.wait(cursor, self._keep_alive_s)
                entries = self._stream.since(cursor, self._runtime.now())
                frames = b"".join(entry.frame(self._runtime.unix) for entry in entries) or b": still here\n\n"
                cursor = entries[-1].id + 1 if entries else cursor
        except (ConnectionError, TimeoutError):
            pass  # the listener is gone, or as good as
        return response

    def _cursor(self, request: web.Request) -> int:
        """The id of the first entry to tell."""
        seen = request.headers.get("Last-Event-ID", "").strip()
        if not seen:
            return self._stream.next_id
        if not (seen.isascii() and seen.isdigit() and len(seen) <= 18):
            raise invalid(
                f"Last-Event-ID: {seen[:60]!r} is none of this stream's ids; leave it out to begin now",
                "Last-Event-ID",
            )
        return int(seen) + 1
