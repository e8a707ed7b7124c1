"""The control plane under ``/thunder/v1``: programs, events, backends.

Handlers read a request, post events into the core, and show its state; they decide nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from aiohttp import web

from thunder_sdk import wire
from thunder_server import payloads, views
from thunder_server.auth import Keys
from thunder_server.backend_spec import BackendSpec
from thunder_server.core.events import Outcome, ProgramClosed, ProgramOpened
from thunder_server.core.program import Program, Status
from thunder_server.errors import ApiError, invalid
from thunder_server.jsonbody import MAX_BODY, read_object
from thunder_server.runtime import Runtime

Choice = TypeVar("Choice", bound=StrEnum)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_OUTCOMES: Final = (Outcome.SUCCESS, Outcome.ERROR, Outcome.DROPPED)
AT_ONCE: Final = 500
"""How many events are taken, or programs shown, before others get their turn on the loop."""


class Control:
    """The control plane of one server; `add_routes` puts it into an application."""

    def __init__(self, runtime: Runtime, keys: Keys, *, max_body: int = MAX_BODY) -> None:
        self._runtime = runtime
        self._scheduler = runtime.scheduler
        self._keys = keys
        self._max_body = min(max_body, MAX_BODY)

    def add_routes(self, app: web.Application) -> None:
        prefix = wire.CONTROL_PREFIX
        for method, path, handler in (
            ("PUT", "/programs/{id}", self.put_program),
            ("GET", "/programs/{id}", self.get_program),
            ("DELETE", "/programs/{id}", self.delete_program),
            ("GET", "/programs/{id}/why", self.why),
            ("GET", "/programs", self.list_programs),
            ("POST", "/events", self.take_events),
            ("GET", "/backends", self.list_backends),
            ("POST", "/backends", self.add_backend),
            ("POST", "/backends/{id}/drain", self.drain_backend),
            ("DELETE", "/backends/{id}", self.remove_backend),
        ):
            app.router.add_route(method, prefix + path, self._guarded(handler))

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            self._keys.require(request.headers)
            return await handler(request)

        return guarded

    # --- programs --------------------------------------------------------------------------------------

    async def put_program(self, request: web.Request) -> web.Response:
        program_id = _id(request)
        given = await read_object(request, self._max_body) | _since_when(request)
        body = payloads.read(payloads.ProgramBody, given)
        if body.parent_id == program_id:
            raise invalid("parent_id: a program is not its own parent", "parent_id")
        before = self._scheduler.program(program_id)
        self._runtime.post(self._opened(program_id, body))
        program = self._known(program_id)
        opened = before is None or before.generation != program.generation
        return web.json_response(self._view(program), status=201 if opened else 200)

    def _opened(self, program_id: str, body: payloads.ProgramBody) -> ProgramOpened:
        now = self._runtime.now()
        return body.opened(program_id, now, self._runtime.unix(now), self._here)

    @property
    def _here(self) -> payloads.Here:
        return payloads.Here(*self._runtime.errands.here)

    async def get_program(self, request: web.Request) -> web.Response:
        return web.json_response(self._view(self._known(_id(request))))

    async def delete_program(self, request: web.Request) -> web.Response:
        program_id = _id(request)
        outcome = _choice(request, "outcome", CLIENT_OUTCOMES) or Outcome.SUCCESS
        generation = _whole(request, "generation")
        self._runtime.post(
            ProgramClosed(
                at=self._runtime.now(), program_id=program_id, outcome=outcome, generation=generation
            )
        )
        program = self._scheduler.program(program_id)
        if program is None:
            return web.json_response(views.never_opened(program_id))
        return web.json_response(self._view(program))

    async def list_programs(self, request: web.Request) -> web.Response:
        status = _choice(request, "status", tuple(Status))
        group = request.query.get("group") or None
        listed: list[str] = []
        for index, program in enumerate([*self._scheduler.programs.values()]):
            if index % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            if (status is None or program.status == status) and (group is None or program.group == group):
                listed.append(json.dumps(self._view(program)))
        return web.Response(text=f'{{"programs": [{", ".join(listed)}]}}', content_type="application/json")

    async def why(self, request: web.Request) -> web.Response:
        program_id = _id(request)
        why = self._scheduler.why(program_id, self._runtime.now())
        if why is None:
            raise _unknown_program(program_id)
        return web.json_response(views.why(why, self._runtime.unix))

    async def take_events(self, request: web.Request) -> web.Response:
        body = payloads.read(payloads.EventsBody, await read_object(request, self._max_body))
        spoken_of: dict[str, None] = {}
        errors: list[dict[str, object]] = []
        for index, value in enumerate(body.events):
            if index % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                event = payloads.read_event(value, self._runtime.now(), body.emitter, self._here)
            except ApiError as wrong:
                errors.append({"index": index, "message": wrong.message})
            else:
                self._runtime.post(event)
                spoken_of[event.program_id] = None
        programs = (self._scheduler.program(program_id) for program_id in spoken_of)
        return web.json_response(
            {
                "programs": {
                    program.id: {
                        "status": program.status,
                        "phase": program.phase,
                        "generation": program.generation,
                        "outcome": program.outcome,
                    }
                    for program in programs
                    if program is not None
                },
                "errors": errors,
            }
        )

    def _view(self, program: Program) -> dict[str, Any]:
        return views.program(self._scheduler, program, self._runtime.now(), self._runtime.unix)

    def _known(self, program_id: str) -> Program:
        program = self._scheduler.program(program_id)
        if program is None:
            raise _unknown_program(program_id)
        return program

    # --- backends --------------------------------------------------------------------------------------

    async def list_backends(self, request: web.Request) -> web.Response:
        return web.json_response({"backends": [self._backend(key) for key in self._runtime.backends]})

    async def add_backend(self, request: web.Request) -> web.Response:
        spec = payloads.read(BackendSpec, await read_object(request, self._max_body))
        known = self._runtime.backends.get(spec.id)
        if known is not None and known.spec.url != spec.url:
            raise invalid(f"url: {spec.id} is taken by {known.spec.url}; remove that one first", "url")
        self._runtime.add_backend(spec)
        return web.json_response(self._backend(spec.id), status=201 if known is None else 200)

    async def drain_backend(self, request: web.Request) -> web.Response:
        backend_id = self._known_backend(request)
        body = payloads.read(payloads.DrainBody, await read_object(request, self._max_body))
        if backend_id in self._runtime.backends:  # it may have gone while the body came
            self._runtime.drain_backend(backend_id, body.timeout_s)
        return web.json_response(self._backend(self._known_backend(request)), status=202)

    async def remove_backend(self, request: web.Request) -> web.Response:
        backend_id = self._known_backend(request)
        gone = self._backend(backend_id)
        self._runtime.remove_backend(backend_id)
        return web.json_response(gone | {"healthy": False, "draining": False})

    def _backend(self, backend_id: str) -> dict[str, Any]:
        return views.backend(self._runtime, backend_id)

    def _known_backend(self, request: web.Request) -> str:
        backend_id = request.match_info["id"]
        if backend_id not in self._runtime.backends:
            known = ", ".join(self._runtime.backends) or "none"
            raise ApiError(
                404,
                "backend_not_found",
                f"There is no backend {backend_id[:200]!r}; there are: {known}.",
                param="id",
            )
        return backend_id


def _id(request: web.Request) -> str:
    program_id = request.match_info["id"]
    if not wire.is_valid_id(program_id):
        raise invalid(f"{program_id[:60]!r} is no program id: {wire.ID_GRAMMAR}", "id")
    return program_id


def _since_when(request: web.Request) -> dict[str, float]:
    """What the SDK says of the time, which is no property of the program, in headers."""
    said = {}
    for name, header in (("age_s", wire.AGE), ("sent_at", wire.SENT_AT)):
        if text := request.headers.get(header):
            try:
                said[name] = float(text)
            except ValueError:
                raise invalid(f"{header}: should be a number, not {text[:60]!r}", header) from None
    return said


def _unknown_program(program_id: str) -> ApiError:
    return ApiError(
        404,
        "program_not_found",
        f"There is no program {program_id!r}; one that ended is kept for ten minutes.",
        param="id",
    )


def _choice(request: web.Request, name: str, choices: Sequence[Choice]) -> Choice | None:
    """One of ``choices`` from the query; ``None`` if it is not there or empty."""
    text = request.query.get(name)
    if not text:
        return None
    for choice in choices:
        if choice == text:
            return choice
    raise invalid(f"{name}: {text[:60]!r} is unknown; there are {', '.join(choices)}", name)


def _whole(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise invalid(f"{name}: should be a whole number, not {text[:60]!r}", name)
    return int(text)
