"""One call on its way: from the queue to a backend and back, every end of it accounted for."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from thunder_sdk import wire
from thunder_server import refusals
from thunder_server.apis import Api
from thunder_server.backend_spec import PRIORITY_SIGN, BackendSpec
from thunder_server.calls import Call, CallInterrupted
from thunder_server.codecs import Decoder, Undecodable, decode, decoder
from thunder_server.core.decisions import Cancel, Dispatch, Refuse
from thunder_server.core.events import CallEnd, CallProgressed
from thunder_server.errors import ApiError, error_event, internal_error
from thunder_server.metering import StreamMeter
from thunder_server.request_body import Body
from thunder_server.runtime import Runtime
from thunder_server.upstream import BackendFailed, ConnectFailed, UpstreamError, end_to_end, next_chunk, send
from thunder_server.usage import NO_USAGE, Usage

log = logging.getLogger(__name__)

_PROGRESS_EVERY: Final = 32  # events of a stream between two words about it to the core
_QUEUED: Final = b": queued\n\n"
_LARGEST_ANSWER: Final = 1 << 30
_MOST_WORDS: Final = 1000  # bytes of an engine's complaint that fit into a message


class Exchange:
    """Serves one scheduled call. ``headers`` are the request headers that the engine gets."""

    def __init__(
        self,
        runtime: Runtime,
        call: Call,
        request: web.Request,
        body: Body,
        headers: CIMultiDict[str],
        api: Api,
        *,
        heartbeat_s: float,
        silence_s: float,
        engine_priority: bool,
    ) -> None:
        self._runtime = runtime
        self._call = call
        self._request = request
        self._body = body
        self._headers = headers
        self._api = api
        self._path = call.arrived.path
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._engine_priority = engine_priority
        self._client: web.StreamResponse | None = None  # a stream to the client that has begun

    async def serve(self) -> web.StreamResponse:
        """The answer for the client, whichever it is. Raises only when the client is gone."""
        try:
            async with self._call.interruptible():
                return await self._exchange()
        except CallInterrupted as interrupted:
            self._finish(CallEnd.BACKEND_FAILED)
            by = interrupted.by
            refusal = refusals.of_decision(by) if isinstance(by, Cancel) else refusals.of_cut(by)
            return await self._refuse(refusal)
        except UpstreamError as failure:
            self._finish(CallEnd.BACKEND_FAILED)
            return await self._refuse(refusals.of_failure(failure))
        except ConnectionError:
            raise  # writing to a client that is gone
        except Exception:
            log.exception("serving call %s of program %s failed", self._call.id, self._call.program_id)
            self._finish(CallEnd.BACKEND_FAILED)
            return await self._refuse(internal_error())
        finally:
            self._finish(CallEnd.CLIENT_GONE)  # of no effect on a call that has ended

    def _finish(self, end: CallEnd, usage: Usage = NO_USAGE) -> None:
        self._call.finish(end, self._runtime.now(), usage)

    async def _exchange(self) -> web.StreamResponse:
        while True:
            decision = await self._decision()
            if isinstance(decision, Refuse):
                return await self._refuse(refusals.of_decision(decision))
            try:
                answer = await self._with_heartbeats(self._send(decision.backend_id))
            except ConnectFailed:
                self._runtime.connect_failed(self._call, decision.backend_id)
                continue
            try:
                if answer.content_type == "text/event-stream":
                    return await self._relay_stream(answer, decision)
                return await self._relay_whole(answer, decision)
            finally:
                # Closes the connection if the answer is not read to its end: that is how an engine is
                # told to stop.
                answer.close()

    async def _decision(self) -> Dispatch | Refuse:
        if self._body.stream:
            while (decision := await self._call.decided(self._heartbeat_s)) is None:
                await self._beat()
            return decision
        decision = await self._call.decided()
        assert decision is not None
        return decision

    async def _send(self, backend_id: str) -> aiohttp.ClientResponse:
        backend = self._runtime.backends.get(backend_id)
        if backend is None:
            raise ConnectFailed("The backend is gone.")
        query = self._request.rel_url.raw_query_string
        target = f"{self._path}?{query}" if query else self._path
        if (warmth := self._runtime.warmth) is not None:
            warmth.remember(self._call.program_id, self._path, target, self._headers, self._body)
        return await send(
            self._runtime.http,
            backend.spec,
            "POST",
            target,
            self._headers,
            self._body.forward_with(self._priority(backend.spec))
            if self._engine_priority
            else self._body.forward,
            silence_s=self._silence_s,
        )

    def _priority(self, backend: BackendSpec) -> int:
        """The program's priority as this backend counts; 0 where there is nothing to say."""
        program = self._runtime.scheduler.program(self._call.program_id)
        return 0 if program is None else program.priority * PRIORITY_SIGN.get(backend.engine, 0)

    # --- the queue -------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Tell a client that waits for a stream that it is not forgotten: proxies in between cut silence."""
        if self._client is None:
            self._client = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "Cache-Control": "no-cache",
                    "X-Accel-Buffering": "no",
                    wire.PROGRAM_ID: self._call.program_id,
                }
            )
            await self._client.prepare(self._request)
        await self._taken(self._client.write(_QUEUED))

    async def _with_heartbeats(
        self, sending: Coroutine[Any, Any, aiohttp.ClientResponse]
    ) -> aiohttp.ClientResponse:
        """The head of the engine's answer; meanwhile the comments go on, where they have begun."""
        if self._client is None:
            return await sending
        task = asyncio.ensure_future(sending)
        try:
            while not (await asyncio.wait((task,), timeout=self._heartbeat_s))[0]:
                await self._beat()
            return task.result()
        except BaseException:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()
            raise

    # --- the engine's answer ---------------------------------------------------------------------------

    async def _relay_whole(self, answer: aiohttp.ClientResponse, dispatch: Dispatch) -> web.StreamResponse:
        pieces: list[bytes] = []
        while chunk := await next_chunk(answer):
            pieces.append(chunk)
        raw = b"".join(pieces)
        encoding = answer.headers.get("Content-Encoding", "")
        plain: bytes | None = raw
        if encoding and encoding != "identity":
            try:
                plain = decode(raw, encoding, _LARGEST_ANSWER)
            except Undecodable:
                plain = None
        if answer.status < 400:
            self._finish(CallEnd.COMPLETED, self._usage(plain))
        else:
            self._finish(CallEnd.ENGINE_REFUSED)
        if self._client is not None:
            return await self._end_stream(self._as_event(answer.status, plain))
        headers = self._answer_headers(answer, dispatch)
        headers.popall("Content-Length", None)
        return web.Response(status=answer.status, reason=answer.reason, headers=headers, body=raw)

    async def _relay_stream(self, answer: aiohttp.ClientResponse, dispatch: Dispatch) -> web.StreamResponse:
        encoding = answer.headers.get("Content-Encoding", "")
        plain = decoder(encoding) if encoding and encoding != "identity" else None
        sealed = plain is None and bool(encoding) and encoding != "identity"
        client = self._client
        if client is None:
            headers = self._answer_headers(answer, dispatch)
            if plain is not None or self._body.withhold_usage:
                headers.popall("Content-Length", None)
            if plain is not None:
                headers.popall("Content-Encoding", None)
            client = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
            await client.prepare(self._request)
            self._client = client
        if sealed:
            return await self._relay_sealed(answer, client)
        meter = StreamMeter(self._api, withhold_usage=self._body.withhold_usage)
        told = _PROGRESS_EVERY
        while chunk := await next_chunk(answer):
            now = self._call.touched = self._runtime.now()
            passed = meter.feed(chunk if plain is None else _decoded(plain, chunk))
            if meter.complete:
                self._finish(CallEnd.ENGINE_REFUSED if meter.failed else CallEnd.COMPLETED, meter.usage)
            elif meter.events >= told:
                told = meter.events + _PROGRESS_EVERY
                self._runtime.post(
                    CallProgressed(at=now, call_id=self._call.id, completion_tokens=meter.events)
                )
            if passed:
                await self._taken(client.write(passed))
        rest = meter.rest()
        refused = answer.status >= 400 or meter.failed
        self._finish(CallEnd.ENGINE_REFUSED if refused else CallEnd.COMPLETED, meter.usage)
        return await self._end_stream(rest)

    async def _relay_sealed(
        self, answer: aiohttp.ClientResponse, client: web.StreamResponse
    ) -> web.StreamResponse:
        """A stream in an unknown coding: its bytes pass, and a break can only be shown as one."""
        try:
            while chunk := await next_chunk(answer):
                self._call.touched = self._runtime.now()
                await self._taken(client.write(chunk))
        except UpstreamError:
            self._finish(CallEnd.BACKEND_FAILED)
            if self._request.transport is not None:
                self._request.transport.abort()
            return client
        self._finish(CallEnd.COMPLETED if answer.status < 400 else CallEnd.ENGINE_REFUSED)
        return await self._end_stream(b"")

    def _answer_headers(self, answer: aiohttp.ClientResponse, dispatch: Dispatch) -> CIMultiDict[str]:
        headers = end_to_end(answer.headers)
        headers[wire.PROGRAM_ID] = self._call.program_id
        headers[wire.BACKEND] = dispatch.backend_id
        headers[wire.WAIT_MS] = str(round(dispatch.waited_s * 1000))
        return headers

    def _usage(self, plain: bytes | None) -> Usage:
        try:
            answer = json.loads(plain or b"")
        except (ValueError, RecursionError):
            return NO_USAGE
        return self._api.read_usage(answer) if isinstance(answer, dict) else NO_USAGE

    # --- our own words ---------------------------------------------------------------------------------

    async def _refuse(self, refusal: ApiError) -> web.StreamResponse:
        if self._client is not None:
            return await self._end_stream(refusal.event(self._path))
        response = refusal.response(self._path)
        response.headers[wire.PROGRAM_ID] = self._call.program_id
        return response

    def _as_event(self, status: int, plain: bytes | None) -> bytes:
        """The engine's whole answer as an event, for a client that was promised a stream meanwhile."""
        try:
            value = json.loads(plain or b"")
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and (status < 400 or "error" in value):
            return error_event(json.dumps(value).encode(), self._path)
        words = (plain or b"")[:_MOST_WORDS].decode(errors="replace").strip()
        message = f"The backend answered with status {status}{f': {words}' if words else '.'}"
        return refusals.of_failure(BackendFailed(message)).event(self._path)

    async def _end_stream(self, last: bytes) -> web.StreamResponse:
        assert self._client is not None
        if last:
            await self._taken(self._client.write(last))
        await self._taken(self._client.write_eof())
        return self._client

    async def _taken(self, writing: Awaitable[None]) -> None:
        """Wait until the client has room for what is written to it. One that reads nothing for as long as an
        engine may say nothing is as good as gone: it would hold its program's memory for ever."""
        try:
            async with asyncio.timeout(self._silence_s):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client takes nothing any longer") from None


def _decoded(stream: Decoder, chunk: bytes) -> bytes:
    try:
        return stream.feed(chunk)
    except Undecodable as broken:
        raise BackendFailed("The backend sent a stream that does not decode.") from broken
