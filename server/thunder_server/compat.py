"""ThunderAgent's own HTTP face, for clients written against its proxy.

Their words differ from ours: their ``status`` is our phase, their ``state`` our status, and a backend goes by
its URL.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiohttp import web

from thunder_server import payloads
from thunder_server.auth import Keys
from thunder_server.core.events import ProgramClosed
from thunder_server.core.program import Phase, Program, State, Status
from thunder_server.jsonbody import MAX_BODY, read_object
from thunder_server.runtime import Runtime


class Compat:
    """``POST /programs/release``, ``GET /programs`` and ``GET /health`` as ThunderAgent answers them.

    ``policy`` is the name of the policy at work.
    """

    def __init__(self, runtime: Runtime, keys: Keys, policy: str, *, max_body: int = MAX_BODY) -> None:
        self._runtime = runtime
        self._keys = keys
        self._policy = policy
        self._max_body = min(max_body, MAX_BODY)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/programs/release", self.release)
        app.router.add_get("/programs", self.list_programs)
        app.router.add_get("/health", self.health)

    async def release(self, request: web.Request) -> web.Response:
        """Their clients release in a ``finally``, some of them several times: that is never an error."""
        self._keys.require(request.headers)
        body = payloads.read(payloads.ReleaseBody, await read_object(request, self._max_body))
        program = self._runtime.scheduler.program(body.program_id)
        live = program is not None and program.status is not Status.TERMINATED and not program.closing
        if live:
            self._runtime.post(ProgramClosed(at=self._runtime.now(), program_id=body.program_id))
        return web.json_response({"program_id": body.program_id, "released": live})

    async def list_programs(self, request: web.Request) -> web.Response:
        self._keys.require(request.headers)
        programs = self._runtime.scheduler.programs.values()
        return web.json_response({program.id: self._program(program) for program in programs})

    def _program(self, program: Program) -> dict[str, Any]:
        # As there: tokens and characters of the context as the last call left it, not sums over calls.
        return {
            "backend": self._url(program.backend_id),
            "context_len": program.size.prompt_chars,
            "total_tokens": program.context,
            "step_count": program.call_totals.total,
            "status": program.phase,
            "state": program.status,
        }

    def _url(self, backend_id: str | None) -> str | None:
        poller = self._runtime.backends.get(backend_id) if backend_id is not None else None
        return backend_id if poller is None else poller.spec.url

    async def health(self, request: web.Request) -> web.Response:
        """The process lives; their counts beside. Needs no key, and names no program."""
        living = [
            program
            for program in self._runtime.scheduler.programs.values()
            if program.status is not Status.TERMINATED
        ]
        by_phase = Counter(program.phase for program in living if program.status is Status.ACTIVE)
        per_backend = {
            poller.spec.url: {"total": 0, "reasoning": 0, "acting": 0, "paused": 0, "marked_for_pause": 0}
            for poller in self._runtime.backends.values()
        }
        for program in living:
            counts = per_backend.get(self._url(program.backend_id) or "")
            if counts is not None:
                counts["total"] += 1
                counts[program.phase] += 1
                counts["marked_for_pause"] += program.state is State.MARKED
        return web.json_response(
            {
                "status": "ok",
                "router_mode": "tr" if self._policy != "passthrough" else "default",
                "scheduling_enabled": self._policy != "passthrough",
                "policy": self._policy,
                "backends": list(per_backend),
                "programs_count": len(living),
                "reasoning_count": by_phase[Phase.REASONING],
                "acting_count": by_phase[Phase.ACTING],
                "paused_count": sum(program.status is Status.PAUSED for program in living),
                "per_backend": per_backend,
                "profile_enabled": False,
            }
        )
