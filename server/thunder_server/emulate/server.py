"""The HTTP face of the stand-in engine: OpenAI's API and vLLM's extras on aiohttp."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from thunder_server.emulate import answers, tokens
from thunder_server.emulate.answers import Answer, Limits
from thunder_server.emulate.device import Device, Generation
from thunder_server.emulate.metrics import CONTENT_TYPE, VllmMetrics
from thunder_server.emulate.requests import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Sampling,
    TokenizeBody,
    parse,
)
from thunder_server.simulation.engine import Engine
from thunder_server.simulation.time_model import PRESETS, EnginePreset

_log = logging.getLogger(__name__)
_MAX_BODY = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine to stand in for. Sizes in tokens, ``None``: the preset's.

    >>> EngineSettings(kv_tokens=4096).blocks
    256
    """

    model: str = "emulated"
    preset: EnginePreset = PRESETS["cpu-small"]
    kv_tokens: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"the block size must be at least 1 token, not {self.block_size}")
        if self.blocks < 1:
            raise ValueError(
                f"{self.kv_tokens} KV tokens are less than one block of {self.block_size}; raise kv_tokens"
            )
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"the speed must be above 0, not {self.speed}")
        if not 1 < self.limits.max_model_len <= self.blocks * self.block_size:
            raise ValueError(
                f"a max_model_len of {self.limits.max_model_len} does not fit: it must be 2 to "
                f"{self.blocks * self.block_size}, what the KV cache holds"
            )

    @property
    def blocks(self) -> int:
        return (self.preset.kv_tokens if self.kv_tokens is None else self.kv_tokens) // self.block_size

    @property
    def limits(self) -> Limits:
        longest = self.max_model_len
        if longest is None:
            longest = min(self.preset.max_model_len, self.blocks * self.block_size)
        return Limits(max_model_len=longest, block_size=self.block_size)

    def build(self) -> Engine:
        return Engine(
            blocks=self.blocks,
            block_size=self.block_size,
            time=self.preset.time,
            max_num_seqs=self.preset.max_num_seqs,
            max_num_batched_tokens=self.preset.max_num_batched_tokens,
        )


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
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[_openai_errors])
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
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
            web.get("/v1/models", self.models),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.get("/health", self.health),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
        ]

    async def chat(self, http: web.Request) -> web.StreamResponse:
        body = parse(ChatBody, await http.read(), model=self._model)
        return await self._generate(
            http, body, [answers.to_chat(body, self._limits)], _ChatShape(self._model)
        )

    async def completions(self, http: web.Request) -> web.StreamResponse:
        body = parse(CompletionBody, await http.read(), model=self._model)
        prompts = [answers.to_completion(prompt, body, self._limits) for prompt in body.prompts]
        return await self._generate(http, body, prompts, _CompletionShape(self._model))

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
            messages = [message.model_dump() for message in body.messages]
            encoded = tokens.encode_chat(messages, body.tools, generation_prompt=body.add_generation_prompt)
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

    async def _generate(
        self, http: web.Request, body: Sampling, planned: list[Answer], shape: _Shape
    ) -> web.StreamResponse:
        with ExitStack() as stack:
            running = [
                stack.enter_context(Generation(self._device, answer.request, stream=bool(body.stream)))
                for answer in planned
            ]
            try:
                if body.stream:
                    return await self._stream(http, body, planned, running, shape)
                for generation in running:
                    while not generation.done:
                        await generation.progress()
            except BaseException:
                self._metrics.finished["abort"] += len(planned)
                raise
            self._count(planned)
            choices = [shape.choice(index, answer) for index, answer in enumerate(planned)]
            return web.json_response(shape.whole(choices) | {"usage": _usage(planned)})

    async def _stream(
        self,
        http: web.Request,
        body: Sampling,
        planned: list[Answer],
        running: list[Generation],
        shape: _Shape,
    ) -> web.StreamResponse:
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        on_every_chunk = with_usage and options is not None and bool(options.continuous_usage_stats)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        async for choices in _deltas(planned, running, shape):
            chunk = shape.chunk(choices)
            if on_every_chunk:
                chunk["usage"] = _usage(planned)
            await response.write(_event(chunk))
        if with_usage:
            await response.write(_event(shape.chunk([]) | {"usage": _usage(planned)}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        self._count(planned)
        return response

    def _count(self, planned: list[Answer]) -> None:
        self._metrics.finished.update(answer.finish_reason for answer in planned)


class _Shape:
    """OpenAI's objects of one endpoint, for one call."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str) -> None:
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.whole_object, "choices": choices}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a stream says before the first token."""
        raise NotImplementedError

    def delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        raise NotImplementedError


class _ChatShape(_Shape):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}


class _CompletionShape(_Shape):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return self.delta(index, answer.text, answer.finish_reason)

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


async def _deltas(
    planned: list[Answer], running: list[Generation], shape: _Shape
) -> AsyncIterator[list[dict[str, Any]]]:
    """The choices of each chunk of a stream; of several prompts one after the other."""
    for index, (answer, generation) in enumerate(zip(planned, running, strict=True)):
        if (opening := shape.opening(index)) is not None:
            yield [opening]
        sent = 0
        while not generation.done:
            text = answer.text_until(await generation.progress())
            finish_reason = answer.finish_reason if generation.done else None
            if len(text) > sent or finish_reason:
                yield [shape.delta(index, text[sent:], finish_reason)]
                sent = len(text)


def _usage(planned: list[Answer]) -> dict[str, Any]:
    prompt = sum(answer.request.prompt_tokens for answer in planned)
    generated = sum(answer.request.generated for answer in planned)
    cached = sum(answer.request.cached_tokens for answer in planned)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


@web.middleware
async def _openai_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal in OpenAI's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except web.HTTPException as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        refusal = ApiError(error.status, f"{error.reason}: {request.method} {request.path}", kind=kind)
    return web.json_response(refusal.body, status=refusal.status)
