"""The data plane: OpenAI's and Anthropic's paths, at the root and under ``/p/{program_id}``.

Calls of the scheduled APIs go through the core. Model lists are the union over the backends. Everything
else under ``/v1/`` is passed to a backend as it is.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from thunder_server import refusals
from thunder_server.apis import SCHEDULED, Api
from thunder_server.auth import Keys
from thunder_server.calls import Cut
from thunder_server.core.events import CallArrived, CallTokenized, ProgramClosed
from thunder_server.core.prefix import Chain
from thunder_server.errors import ApiError, method_not_allowed, not_found, too_large
from thunder_server.exchange import Exchange
from thunder_server.identity import read_identity
from thunder_server.models import Models
from thunder_server.passage import Passage
from thunder_server.prompt_chain import prompt_chain
from thunder_server.request_body import prompt_chars, read_body
from thunder_server.runtime import Runtime
from thunder_server.upstream import request_headers

SILENCE_S: Final = 600.0
"""How long an engine may say nothing to a call: what OpenAI's clients wait by default."""


class Proxy:
    """The data plane of one server; `add_routes` puts it into an application.

    ``max_body`` in bytes, ``heartbeat_s`` how long a stream waits in the queue before it is told so,
    ``engine_priority`` whether engines are told the priority of a call's program too.
    """

    def __init__(
        self,
        runtime: Runtime,
        keys: Keys,
        *,
        max_body: int = 64 << 20,
        heartbeat_s: float = 10.0,
        silence_s: float = SILENCE_S,
        engine_priority: bool = False,
    ) -> None:
        self._runtime = runtime
        self._keys = keys
        self._max_body = max_body
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._engine_priority = engine_priority
        self._models = Models(runtime)
        self._passage = Passage(runtime, silence_s=silence_s)

    def add_routes(self, app: web.Application) -> None:
        for root in ("", "/p/{program_id}"):
            app.router.add_route("*", root + "/v1/{tail:.*}", self.handle)
            app.router.add_route("*", root + "/{tail:tokenize}", self.handle)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._keys.require(request.headers)
        if self._runtime.stopping:
            raise refusals.of_cut(Cut.SERVER_STOPPING)
        path_id = request.match_info.get("program_id")
        path = "/" + request.match_info["tail"].rstrip("/")
        if path != "/tokenize":
            path = "/v1" + path
        if (api := SCHEDULED.get(path)) is not None:
            _require(request, "POST")
            return await self._serve(request, api, path, path_id)
        if path == "/v1/models" or path.startswith("/v1/models/"):
            _require(request, "GET", "HEAD")
            read_identity(
                path_id, request.headers, {}
            )  # a typing error in an agent's base URL shows here first
            return await self._models.answer(path.removeprefix("/v1/models").lstrip("/"))
        if ".." in path.split("/"):
            raise not_found("There is nothing at this path; '..' leads nowhere here.")
        return await self._pass(request, path_id)

    async def _serve(
        self, request: web.Request, api: Api, path: str, path_id: str | None
    ) -> web.StreamResponse:
        raw = await self._read(request)
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        body = read_body(raw, encoding, usage_option=api.usage_option, limit=self._max_body)
        identity = read_identity(path_id, request.headers, body.fields)
        if body.model is not None:
            try:
                await self._models.require(body.model)
            except ApiError:
                if identity.final and identity.program_id is not None:  # however the call ends
                    self._runtime.post(ProgramClosed(at=self._runtime.now(), program_id=identity.program_id))
                raise
        call_id = uuid.uuid4().hex
        chain = prompt_chain(path, body.fields)
        blocks = await self._runtime.prompt_blocks.find(
            path, body.fields, chain, lambda blocks: self._tokenized(call_id, blocks)
        )
        call = self._runtime.arrive(
            CallArrived(
                at=self._runtime.now(),
                call_id=call_id,
                program_id=identity.program_id,
                anonymous_id="" if identity.program_id else f"anon_{uuid.uuid4().hex}",
                path=path,
                model=body.model,
                prompt_chars=prompt_chars(body.fields),
                messages=chain,
                blocks=blocks,
                max_output_tokens=body.max_output_tokens,
                digest=_digest(path, raw),
                is_retry=identity.is_retry,
                final=identity.final,
                parent_id=identity.parent_id,
                group=identity.group,
                priority=identity.priority,
                max_wait_s=identity.max_wait_s,
            )
        )
        exchange = Exchange(
            self._runtime,
            call,
            request,
            body,
            self._headers(request),
            api,
            heartbeat_s=self._heartbeat_s,
            silence_s=self._silence_s,
            engine_priority=self._engine_priority,
        )
        return await exchange.serve()

    def _tokenized(self, call_id: str, blocks: Chain) -> None:
        self._runtime.post(CallTokenized(at=self._runtime.now(), call_id=call_id, blocks=blocks))

    async def _pass(self, request: web.Request, path_id: str | None) -> web.StreamResponse:
        raw = await self._read(request)
        body = raw
        fields: Mapping[str, Any] = {}
        if raw[:100].lstrip().startswith(b"{"):
            encoding = request.headers.get("Content-Encoding", "").strip().lower()
            try:
                looked = read_body(raw, encoding, usage_option=False, limit=self._max_body)
            except ApiError:
                pass  # what it should be, the engine knows
            else:
                body, fields = looked.forward, looked.fields
        identity = read_identity(path_id, request.headers, fields)
        model = fields.get("model")
        if isinstance(model, str) and model:
            await self._models.require(model)
        target = request.rel_url.raw_path_qs
        if path_id is not None:
            target = "/" + target.split("/", 3)[3]
        return await self._passage.relay(
            request, target, self._headers(request), body, model=model, program_id=identity.program_id
        )

    def _headers(self, request: web.Request) -> CIMultiDict[str]:
        headers = request_headers(request.headers)
        for name in self._keys.held_by(request.headers):
            headers.popall(name, None)
        return headers

    async def _read(self, request: web.Request) -> bytes:
        """The body as it came. Raises `ApiError` 413 as soon as it is known to be too large."""
        if (request.content_length or 0) > self._max_body:
            raise too_large(self._max_body)
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > self._max_body:
                raise too_large(self._max_body)
            chunks.append(chunk)
        return b"".join(chunks)


def _require(request: web.Request, *methods: str) -> None:
    if request.method not in methods:
        raise method_not_allowed(request.method, ", ".join(methods))


def _digest(path: str, raw: bytes) -> bytes:
    digest = hashlib.sha256(path.encode() + b"\n")  # the quickest by far where the processor has it built in
    digest.update(raw)
    return digest.digest()
