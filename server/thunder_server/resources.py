"""The side of the control plane about what programs hold: the ledger, cleaning up, environments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from thunder_sdk import wire
from thunder_server import payloads
from thunder_server.auth import Keys
from thunder_server.core.decisions import Decision, EnvironmentChanged
from thunder_server.core.events import Event
from thunder_server.core.program import Program
from thunder_server.core.resource_events import EnvironmentAwaited, FailedRetried, Found, OrphansGiven
from thunder_server.core.resources import Holding, ResourceState
from thunder_server.core.views import environment_view, holding_view
from thunder_server.errand_words import found
from thunder_server.errands import Unserved
from thunder_server.errors import ApiError, invalid
from thunder_server.jsonbody import MAX_BODY, read_object
from thunder_server.runtime import Runtime

LONGEST_WAIT_S: Final = 60.0
AT_ONCE: Final = 500
"""How many lines are made before others get their turn on the loop."""
LOOK_S: Final = 30.0
"""How long a host may take to be looked at, or a resource to be measured."""
SETTLED: Final = frozenset({"ready", "failed", "gone", None})
"""States of an environment that nobody waits in."""


class GcBody(BaseModel):
    """``POST /gc``."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    dry_run: bool = False


class Resources:
    """``/resources``, ``/gc`` and ``/programs/{id}/environment`` under ``/thunder/v1``.

    ``unknown_after_s``: so old has an object of a program to be that nobody here knows, and so long has
    this server to have run, before it counts as an orphan: its program may not have called here yet.
    """

    def __init__(
        self, runtime: Runtime, keys: Keys, *, unknown_after_s: float, max_body: int = MAX_BODY
    ) -> None:
        self._runtime = runtime
        self._scheduler = runtime.scheduler
        self._keys = keys
        self._unknown_after_s = unknown_after_s
        self._started_at = runtime.now()
        self._max_body = min(max_body, MAX_BODY)
        self._bells: dict[str, set[asyncio.Event]] = {}  # of those who wait for an environment
        runtime.observe(self._ring)

    def add_routes(self, app: web.Application) -> None:
        prefix = wire.CONTROL_PREFIX
        app.router.add_get(prefix + "/resources", self.list_resources)
        app.router.add_post(prefix + "/gc", self.gc)
        app.router.add_get(prefix + "/programs/{id}/environment", self.environment)

    # --- the ledger ------------------------------------------------------------------------------------

    async def list_resources(self, request: web.Request) -> web.Response:
        """What programs hold and held; ``?program_id=``, ``?state=``, and ``?disk=1`` measures it, too."""
        self._keys.require(request.headers)
        program_id, state = request.query.get("program_id"), request.query.get("state")
        if state and state not in ResourceState.__members__.values():
            raise invalid(f"state: {state[:60]!r} is unknown; there are {', '.join(ResourceState)}", "state")
        holdings = [
            holding
            for holding in self._scheduler.ledger.holdings
            if program_id in (None, "", holding.owner.program_id) and state in (None, "", holding.state.value)
        ]
        shown = []
        for index, holding in enumerate(holdings):
            if index % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            shown.append(self._view(holding))
        if request.query.get("disk") in ("1", "true"):
            sizes = await asyncio.gather(*(self._bytes(holding) for holding in holdings))
            for one, size in zip(shown, sizes, strict=True):
                one["bytes"] = size
        hosts = sorted(self._runtime.errands.hosts)
        return web.json_response({"resources": shown, "hosts": hosts})

    def _view(self, holding: Holding) -> dict[str, Any]:
        return self._line(holding) | {"since": self._runtime.unix(holding.since)}

    def _line(self, holding: Holding) -> dict[str, Any]:
        owner = holding.owner
        program = self._scheduler.program(owner.program_id)
        current = program is not None and program.generation == owner.generation
        return holding_view(holding, program if current else None)

    async def _bytes(self, holding: Holding) -> int | None:
        """What it takes on disk, if somebody can tell: only looked at when somebody asks."""
        key = holding.thing.key
        gone = holding.state in (ResourceState.RECLAIMED, ResourceState.RELEASED)
        if gone or key.kind not in ("container", "environment", "volume", "directory", "image"):
            return None
        try:
            async with asyncio.timeout(LOOK_S):
                result = await self._runtime.errands.ask(
                    wire.Work.MEASURE, key.host or "", kind=key.kind, ref=key.ref
                )
        except (Unserved, TimeoutError):
            return None
        return result.get("bytes")

    # --- cleaning up -----------------------------------------------------------------------------------

    async def gc(self, request: web.Request) -> web.Response:
        """What was left behind, and why; unless it is only asked for, it is reclaimed."""
        self._keys.require(request.headers)
        body = payloads.read(GcBody, await read_object(request, self._max_body))
        now = self._runtime.now()
        items: list[dict[str, Any]] = [
            self._item(holding.thing.key.host, self._line(holding), f"failed: {holding.reason}")
            for holding in self._scheduler.ledger.holdings
            if holding.state is ResourceState.FAILED
        ]
        events: list[Event] = [FailedRetried(at=now)] if items else []
        errors = []
        for host in sorted(self._runtime.errands.hosts):
            try:
                orphans = await self._orphans(host)
            except _NotSeenError as unseen:
                errors.append({"host": host, "error": str(unseen)})
                continue
            known = {(item["kind"], item["ref"]) for item in items}
            orphans = [(one, why) for one, why in orphans if (one.kind, one.ref) not in known]
            items += [
                self._item(host, {"kind": one.kind, "ref": one.ref, "program_id": one.program_id}, why)
                for one, why in orphans
            ]
            if orphans:
                objects = tuple(one for one, _ in orphans)
                events.append(OrphansGiven(at=now, host=host, objects=objects))
        if not body.dry_run:
            for event in events:
                self._runtime.post(event)
        return web.json_response({"dry_run": body.dry_run, "items": items, "errors": errors})

    def _item(self, host: str | None, what: dict[str, Any], why: str) -> dict[str, Any]:
        return {key: what[key] for key in ("kind", "ref", "program_id")} | {"host": host, "why": why}

    async def _orphans(self, host: str) -> list[tuple[Found, str]]:
        """Labelled objects on a host that nobody holds, and why each may go."""
        runtime = self._runtime
        try:
            async with asyncio.timeout(LOOK_S):
                result = await runtime.errands.ask(wire.Work.SURVEY, host)
        except Unserved:
            return []
        except TimeoutError:
            raise _NotSeenError(f"it does not answer within {LOOK_S:g} s") from None
        if result["end"] == wire.WorkEnd.ABSENT:
            return []
        if result["end"] != wire.WorkEnd.DONE:
            raise _NotSeenError(result.get("error") or "it cannot be looked at")
        now = runtime.now()
        objects = found(result, now - runtime.unix(now))
        strangers = self._scheduler.ledger.holdings.unknown(host, objects)
        return [(one, why) for one in strangers if (why := self._why_orphan(one, now)) is not None]

    def _why_orphan(self, one: Found, now: float) -> str | None:
        program = self._scheduler.program(one.program_id)
        if program is None:
            quiet_s = now - max(one.created_at, self._started_at)
            if quiet_s < self._unknown_after_s:
                return None
            return f"its program is unknown, {quiet_s:.0f} s after it was made and this server started"
        if program.outcome is not None:
            return f"its program is over: {program.reason}"
        if one.created_at < program.began_at:
            return f"it is from before generation {program.generation} of its program"
        return None

    # --- environments ----------------------------------------------------------------------------------

    async def environment(self, request: web.Request) -> web.Response:
        """Where a program's environment stands; ``?wait_s=`` waits until it is ready or never will be."""
        self._keys.require(request.headers)
        program = self._known(request.match_info["id"])
        wait_s = _seconds(request, "wait_s")
        if wait_s:
            now = self._runtime.now()
            self._runtime.post(EnvironmentAwaited(at=now, program_id=program.id))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._until_settled(program)
        view = environment_view(program.environment)
        return web.json_response(view | {"program_id": program.id, "generation": program.generation})

    async def _until_settled(self, program: Program) -> None:
        bell = asyncio.Event()
        self._bells.setdefault(program.id, set()).add(bell)
        try:
            while environment_view(program.environment)["state"] not in SETTLED:
                await bell.wait()
                bell.clear()
        finally:
            self._bells[program.id].discard(bell)
            if not self._bells[program.id]:
                del self._bells[program.id]

    def _ring(self, event: Event, decided: Sequence[Decision]) -> None:
        for decision in decided:
            if isinstance(decision, EnvironmentChanged):
                for bell in self._bells.get(decision.program_id, ()):
                    bell.set()

    def _known(self, program_id: str) -> Program:
        program = self._scheduler.program(program_id)
        if program is None:
            raise ApiError(404, "program_not_found", f"There is no program {program_id[:200]!r}.", param="id")
        return program


class _NotSeenError(Exception):
    """A host could not be looked at; the text says why."""


def _seconds(request: web.Request, name: str) -> float:
    text = request.query.get(name) or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise invalid(f"{name}: should be seconds from 0 to {LONGEST_WAIT_S:g}, not {text[:60]!r}", name)
    return seconds
