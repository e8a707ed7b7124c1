"""The side of the control plane that reapers speak to: work is asked for, results are told.

A reaper waits for work in a long poll; what it asks with renews the leases of what it works on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, cast

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from thunder_sdk import wire
from thunder_server import payloads
from thunder_server.auth import Keys
from thunder_server.errands import AT_MOST, LEASE_S
from thunder_server.jsonbody import MAX_BODY, read_object
from thunder_server.runtime import Runtime

LONGEST_WAIT_S: Final = 60.0

Host = Annotated[str, Field(min_length=1, max_length=wire.MAX_HOST)]
TaskId = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=wire.MAX_REF)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class WorkBody(_Body):
    """``POST /reaper/work``."""

    reaper: payloads.Id
    hosts: Annotated[list[Host], Field(min_length=1, max_length=16)]
    busy: Annotated[list[TaskId], Field(max_length=10_000)] = []
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 20.0
    max: Annotated[int, Field(ge=0, le=AT_MOST)] = 8


class _Found(_Body):
    kind: Text
    ref: Text
    name: Text
    program_id: Text
    created_at: float


class _Result(_Body):
    task: TaskId
    end: Literal["done", "absent", "spared", "failed"]
    error: Annotated[str, Field(max_length=100_000)] | None = None
    retryable: bool = True
    pin: Text | None = None
    brought: bool | None = None
    container_id: Text | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    objects: list[_Found] | None = None
    bytes: Annotated[int, Field(ge=0)] | None = None


class ResultsBody(_Body):
    """``POST /reaper/results``."""

    reaper: payloads.Id
    results: Annotated[list[_Result], Field(max_length=10_000)]


class Reapers:
    """``/thunder/v1/reaper/work`` and ``/thunder/v1/reaper/results``."""

    def __init__(self, runtime: Runtime, keys: Keys, *, max_body: int = MAX_BODY) -> None:
        self._runtime = runtime
        self._keys = keys
        self._max_body = min(max_body, MAX_BODY)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post(wire.REAPER_WORK_PATH, self.work)
        app.router.add_post(wire.REAPER_RESULTS_PATH, self.results)

    async def work(self, request: web.Request) -> web.Response:
        self._keys.require(request.headers)
        body = payloads.read(WorkBody, await read_object(request, self._max_body))
        errands = self._runtime.errands
        reaper = errands.seen(body.reaper, body.hosts, body.busy)
        tasks, abandon = errands.hand_out(body.reaper, body.max), errands.abandoned(body.reaper)
        if not tasks and not abandon and body.wait_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(body.wait_s):
                    await reaper.bell.wait()
            errands.seen(body.reaper, body.hosts, body.busy)
            tasks, abandon = errands.hand_out(body.reaper, body.max), errands.abandoned(body.reaper)
        return web.json_response({"tasks": tasks, "abandon": abandon, "lease_s": LEASE_S})

    async def results(self, request: web.Request) -> web.Response:
        self._keys.require(request.headers)
        body = payloads.read(ResultsBody, await read_object(request, self._max_body))
        results: list[Any] = [
            {key: value for key, value in result.model_dump(exclude_unset=True).items() if value is not None}
            for result in body.results
        ]
        unknown = self._runtime.errands.results(cast("list[wire.TaskResult]", results))
        return web.json_response({"unknown": unknown})
