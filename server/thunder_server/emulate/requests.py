"""What request bodies may say, and the error that says what is wrong with one.

Unknown fields are ignored. The bodies of all endpoints that generate come down to the same: prompts, and how
much to say to each.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thunder_server.emulate import tokens

Tokens = Annotated[int, Field(ge=1)]
Tools = list[dict[str, Any]] | None
Content = str | list[dict[str, Any]] | None


class ApiError(Exception):
    """A refusal: its status, what to tell, and the field that is to blame."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: Content = None
    tool_calls: Tools = None


class Body(BaseModel):
    """Any body."""

    model: str | None = None


class GeneratingBody(Body):
    """A body that asks for text. One answer to each prompt."""

    prompt_field: ClassVar[str]

    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    seed: int | None = None
    cache_salt: str | None = None
    stream: bool | None = False

    @abstractmethod
    def encode_prompts(self) -> Sequence[bytes]:
        """The tokens of each prompt; the last one of a prompt need not be full."""

    @property
    @abstractmethod
    def most_tokens(self) -> int | None:
        """The most that the client wants of each answer, if it says."""

    @property
    @abstractmethod
    def stops(self) -> Sequence[str]:
        """Texts that end an answer."""


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _CompletingBody(GeneratingBody):
    """What OpenAI's two older endpoints have in common."""

    max_tokens: Tokens | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = 1
    stream_options: StreamOptions | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatBody(_CompletingBody):
    prompt_field = "messages"

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Tools = None
    max_completion_tokens: Tokens | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def encode_prompts(self) -> Sequence[bytes]:
        return [encode_messages(self.messages, self.tools)]


class CompletionBody(_CompletingBody):
    prompt_field = "prompt"

    max_tokens: Tokens | None = 16
    prompt: str | list[int] | Annotated[list[str | list[int]], Field(min_length=1)]

    def encode_prompts(self) -> Sequence[bytes]:
        if isinstance(self.prompt, str):
            return [_encode_prompt(self.prompt)]
        ids = [token for token in self.prompt if isinstance(token, int)]
        several = [prompt for prompt in self.prompt if not isinstance(prompt, int)]
        return [_encode_prompt(prompt) for prompt in several or [ids]]


class TokenizeBody(Body):
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Tools = None
    add_generation_prompt: bool = True


class DetokenizeBody(Body):
    tokens: list[Annotated[int, Field(ge=0, lt=2**32)]]


def encode_messages(messages: Sequence[Message], tools: Tools, *, generation_prompt: bool = True) -> bytes:
    return tokens.encode_chat(
        [message.model_dump() for message in messages], tools, generation_prompt=generation_prompt
    )


def _encode_prompt(prompt: str | list[int]) -> bytes:
    if isinstance(prompt, str):
        # Its last token is left as it is and the answer goes on inside it, so that prompt and answer, sent
        # again as one text, are the same tokens.
        return prompt.encode(errors="replace")
    try:
        return tokens.from_ids(prompt)
    except ValueError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from None


_B = TypeVar("_B", bound=Body)


def parse(kind: type[_B], raw: bytes, *, model: str) -> _B:
    """Read a body for the one model that is served, or raise an ``ApiError`` that names the field."""
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ApiError(400, "The body must be a JSON object.")
    try:
        body = kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise ApiError(400, message, param=where or None) from None
    if body.model and body.model != model:
        raise ApiError(404, f"The model `{body.model}` does not exist.", param="model")
    if isinstance(body, _CompletingBody) and body.stream_options is not None and not body.stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if isinstance(body, GeneratingBody):
        _check_lengths(body)
    return body


def _check_lengths(body: GeneratingBody) -> None:
    if body.most_tokens is not None and body.min_tokens > body.most_tokens:
        raise ApiError(
            400,
            f"min_tokens ({body.min_tokens}) is more than max_tokens ({body.most_tokens}).",
            param="min_tokens",
        )
