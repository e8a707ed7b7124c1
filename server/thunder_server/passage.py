"""What is not scheduled is passed to a backend and its answer back, both as they are."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from thunder_sdk import wire
from thunder_server import refusals
from thunder_server.backends.poller import Poller
from thunder_server.runtime import Runtime
from thunder_server.upstream import ConnectFailed, UpstreamError, end_to_end, next_chunk, send


class Passage:
    """The plain way through this proxy."""

    def __init__(self, runtime: Runtime, *, silence_s: float) -> None:
        self._runtime = runtime
        self._silence_s = silence_s

    async def relay(
        self,
        request: web.Request,
        target: str,
        headers: CIMultiDict[str],
        body: bytes,
        *,
        model: str | None,
        program_id: str | None,
    ) -> web.StreamResponse:
        """Pass one request to ``target`` (path and query) of a fitting backend. Raises `ApiError`."""
        refused: UpstreamError | None = None
        for backend in self._candidates(model, program_id):
            try:
                answer = await send(
                    self._runtime.http,
                    backend.spec,
                    request.method,
                    target,
                    headers,
                    body,
                    silence_s=self._silence_s,
                )
            except ConnectFailed as failure:
                refused = failure
                backend.look_now()
                continue
            except UpstreamError as failure:
                raise refusals.of_failure(failure) from failure
            try:
                return await self._answer(request, answer, backend.spec.id, program_id)
            finally:
                answer.close()
        raise refusals.no_backend() if refused is None else refusals.of_failure(refused)

    def _candidates(self, model: str | None, program_id: str | None) -> Iterator[Poller]:
        """Backends that live and know the model: the program's own first, then the least busy, those that are
        drained last."""
        scheduler = self._runtime.scheduler
        program = None if program_id is None else scheduler.program(program_id)
        home = None if program is None else program.backend_id
        busy: dict[str, int] = {}
        for call in self._runtime.calls.values():
            if call.dispatch is not None:
                busy[call.dispatch.backend_id] = busy.get(call.dispatch.backend_id, 0) + 1
        fitting = [
            backend
            for backend in self._runtime.healthy_backends.values()
            if model is None or backend.models is None or model in backend.models
        ]
        drained = {key for key, backend in scheduler.backends.items() if backend.draining}

        def rank(backend: Poller) -> tuple[bool, bool, int]:
            key = backend.spec.id
            return key in drained, key != home, busy.get(key, 0)

        yield from sorted(fitting, key=rank)

    async def _answer(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        backend_id: str,
        program_id: str | None,
    ) -> web.StreamResponse:
        headers = end_to_end(answer.headers)
        headers[wire.BACKEND] = backend_id
        if program_id is not None:
            headers[wire.PROGRAM_ID] = program_id
        client = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        await client.prepare(request)
        try:
            while chunk := await next_chunk(answer):
                await client.write(chunk)
        except UpstreamError:
            # The head is gone; only a broken connection still says that the answer is not whole.
            if request.transport is not None:
                request.transport.abort()
            return client
        await client.write_eof()
        return client
