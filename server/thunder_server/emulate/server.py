"""The HTTP face of the stand-in engine: OpenAI's API and vLLM's extras on aiohttp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from types import TracebackType
from typing import Self, TypeVar

from aiohttp import web

from thunder_server.emulate import tokens
from thunder_server.emulate.answers import Answer, plan
from thunder_server.emulate.anthropic import CountBody, MessagesBody, MessagesReply
from thunder_server.emulate.device import Device, Generation
from thunder_server.emulate.metrics import CONTENT_TYPE, VllmMetrics
from thunder_server.emulate.refusals import refusals
from thunder_server.emulate.replies import ChatReply, CompletionReply, Reply
from thunder_server.emulate.requests import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GeneratingBody,
    TokenizeBody,
    encode_messages,
    parse,
)
from thunder_server.emulate.responses import ResponsesBody, ResponsesReply
from thunder_server.emulate.settings import EngineSettings

_MAX_BODY = 64 * 2**20
_B = TypeVar("_B", bound=GeneratingBody)


class EmulatedServer:
    """One stand-in engine on a port; ``port=0`` takes a free one.

    >>> async with EmulatedServer(EngineSettings(speed=50), port=0) as server:       # doctest: +SKIP
    ...     print(server.url)
    http://127.0.0.1:40123
    """

    def __init__(self, settings: EngineSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.engine = settings.build()
        self.url = ""
        self._host, self._port = host, port
        self._device = Device(self.engine, speed=settings.speed)
        face = _Face(settings, self._device)
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[refusals])
        app.add_routes(face.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
            await site.start()
        except BaseException:
            await self._runner.cleanup()
            raise
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._loop = asyncio.create_task(self._device.run(), name="emulated device")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)


class _Face:
    """The handlers."""

    def __init__(self, settings: EngineSettings, device: Device) -> None:
        self._model = settings.model
        self._limits = settings.limits
        self._device = device
        self._metrics = VllmMetrics(device.engine, model=settings.model)
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._generates(ChatBody, ChatReply)),
            web.post("/v1/completions", self._generates(CompletionBody, CompletionReply)),
            web.post("/v1/responses", self._generates(ResponsesBody, ResponsesReply)),
            web.post("/v1/messages", self._generates(MessagesBody, MessagesReply)),
            web.post("/v1/messages/count_tokens", self.count_tokens),
            web.get("/v1/models", self.models),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.get("/health", self.health),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
        ]

    def _generates(
        self, kind: type[_B], reply: Callable[[str, Sequence[Answer], _B], Reply]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of an endpoint with such bodies and replies."""

        async def handle(http: web.Request) -> web.StreamResponse:
            body = parse(kind, await http.read(), model=self._model)
            answers = plan(body, self._limits)
            return await self._answer(http, answers, reply(self._model, answers, body), bool(body.stream))

        return handle

    async def count_tokens(self, http: web.Request) -> web.Response:
        body = parse(CountBody, await http.read(), model=self._model)
        return web.json_response({"input_tokens": tokens.count(body.encode())})

    async def models(self, _http: web.Request) -> web.Response:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._started,
            "owned_by": "thunder",
            "root": self._model,
            "parent": None,
            "max_model_len": self._limits.max_model_len,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def tokenize(self, http: web.Request) -> web.Response:
        body = parse(TokenizeBody, await http.read(), model=self._model)
        if body.messages is not None:
            encoded = encode_messages(body.messages, body.tools, generation_prompt=body.add_generation_prompt)
        elif body.prompt is not None:
            encoded = tokens.encode(body.prompt)
        else:
            raise ApiError(400, "Give a prompt or messages to tokenize.", param="prompt")
        ids = tokens.to_ids(encoded)
        return web.json_response(
            {
                "count": len(ids),
                "max_model_len": self._limits.max_model_len,
                "tokens": ids,
                "token_strs": None,
            }
        )

    async def detokenize(self, http: web.Request) -> web.Response:
        body = parse(DetokenizeBody, await http.read(), model=self._model)
        return web.json_response({"prompt": tokens.decode(tokens.from_ids(body.tokens))})

    async def health(self, _http: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _http: web.Request) -> web.Response:
        return web.json_response({"version": version("thunder-sdk")})

    async def metrics(self, _http: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _answer(
        self, http: web.Request, answers: Sequence[Answer], reply: Reply, stream: bool
    ) -> web.StreamResponse:
        """Generate and reply. However this ends (a client that goes away ends it), the engine is freed."""
        with ExitStack() as stack:
            running = [
                stack.enter_context(Generation(self._device, answer.request, stream=stream))
                for answer in answers
            ]
            try:
                if stream:
                    response = await _stream(http, answers, running, reply)
                else:
                    for generation in running:
                        while not generation.done:
                            await generation.progress()
                    response = web.json_response(reply.whole())
            except BaseException:
                self._metrics.finished["abort"] += len(answers)
                raise
            self._metrics.finished.update(answer.finish_reason for answer in answers)
            return response


async def _stream(
    http: web.Request, answers: Sequence[Answer], running: Sequence[Generation], reply: Reply
) -> web.StreamResponse:
    """The events as they come; of several prompts one after the other."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    for index, (answer, generation) in enumerate(zip(answers, running, strict=True)):
        sent, opened = 0, False
        while not generation.done:
            text = answer.text_until(await generation.progress())
            finish_reason = answer.finish_reason if generation.done else None
            if not opened or len(text) > sent or finish_reason:
                opening = b"" if opened else reply.opening(index)
                await response.write(opening + reply.delta(index, text[sent:], finish_reason))
                sent, opened = len(text), True
    await response.write(reply.closing())
    await response.write_eof()
    return response
