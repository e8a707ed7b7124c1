"""``POST /weight_sync/begin`` and ``/end``: trainers hold dispatch while engines get new weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from thunder_sdk import wire
from thunder_server import payloads
from thunder_server.auth import Keys
from thunder_server.core.decisions import Decision
from thunder_server.core.events import Event, WeightSyncBegan, WeightSyncEnded
from thunder_server.jsonbody import MAX_BODY, read_object
from thunder_server.runtime import Runtime


class WeightSync:
    """The two calls, under the control plane's prefix and where ThunderAgent's clients look for them."""

    def __init__(self, runtime: Runtime, keys: Keys, *, max_body: int = MAX_BODY) -> None:
        self._runtime = runtime
        self._scheduler = runtime.scheduler
        self._keys = keys
        self._max_body = min(max_body, MAX_BODY)

    def add_routes(self, app: web.Application) -> None:
        for prefix in (wire.CONTROL_PREFIX, ""):
            app.router.add_post(f"{prefix}/weight_sync/begin", self.begin)
            app.router.add_post(f"{prefix}/weight_sync/end", self.end)

    async def begin(self, request: web.Request) -> web.Response:
        """Hold dispatch. Answers when running calls are done, or the time is up, or somebody ended it."""
        self._keys.require(request.headers)
        body = payloads.read(payloads.WeightSyncBody, await read_object(request, self._max_body))
        self._runtime.post(WeightSyncBegan(at=self._runtime.now(), watchdog_s=body.watchdog_s))
        await self._drained(body.timeout_s)
        drained = self._scheduler.held and not self._scheduler.running_calls
        return web.json_response({"drained": drained})

    async def _drained(self, timeout_s: float) -> None:
        settled = asyncio.Event()

        def look(event: Event, decided: Sequence[Decision]) -> None:
            if not (self._scheduler.held and self._scheduler.running_calls):
                settled.set()

        look_no_more = self._runtime.observe(look)
        try:
            if self._scheduler.held and self._scheduler.running_calls:
                async with asyncio.timeout(timeout_s):
                    await settled.wait()
        except TimeoutError:
            pass
        finally:
            look_no_more()

    async def end(self, request: web.Request) -> web.Response:
        """Dispatch again. ``ended`` is false if nothing was held, which is no error: it may come twice."""
        self._keys.require(request.headers)
        held = self._scheduler.held
        self._runtime.post(WeightSyncEnded(at=self._runtime.now()))
        return web.json_response({"ended": held})
