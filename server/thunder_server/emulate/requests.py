"""What a request body may say, and the error that says what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ApiError(Exception):
    """A refusal in OpenAI's shape, with vLLM's types."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Body(BaseModel):
    """What all bodies have in common. Unknown fields are ignored, as vLLM does."""

    model: str | None = None


class Sampling(_Body):
    """How much to generate. One choice per prompt."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = 1
    seed: int | None = None
    cache_salt: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def most_tokens(self) -> int | None:
        """The most that the client wants, if it says."""
        return self.max_tokens


class ChatBody(Sampling):
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(Sampling):
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    prompt: str | list[int] | Annotated[list[str | list[int]], Field(min_length=1)]

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each answered by a choice of its own."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token for token in self.prompt if isinstance(token, int)]
        several = [prompt for prompt in self.prompt if not isinstance(prompt, int)]
        return [*several] if several else [ids]


class TokenizeBody(_Body):
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(_Body):
    tokens: list[Annotated[int, Field(ge=0, lt=2**32)]]


_B = TypeVar("_B", bound=_Body)


def parse(kind: type[_B], raw: bytes, *, model: str) -> _B:
    """Read a body for the one model that is served, or raise an ``ApiError`` that names the field."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ApiError(400, "The body must be a JSON object.")
    try:
        body = kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ApiError(
            400, f"{where}: {first['msg']}" if where else first["msg"], param=where or None
        ) from None
    if body.model and body.model != model:
        raise ApiError(404, f"The model `{body.model}` does not exist.", kind="NotFoundError", param="model")
    if isinstance(body, Sampling):
        _check_sampling(body)
    return body


def _check_sampling(body: Sampling) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if body.most_tokens is not None and body.min_tokens > body.most_tokens:
        raise ApiError(
            400,
            f"min_tokens ({body.min_tokens}) is more than max_tokens ({body.most_tokens}).",
            param="min_tokens",
        )
