"""What surrounds an answer: the object of an API that holds it whole, or the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder_server.emulate.answers import Answer
from thunder_server.emulate.requests import ChatBody, CompletionBody


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call so far. ``prompt`` includes ``cached``."""

    prompt: int
    cached: int
    generated: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Usage:
        requests = [answer.request for answer in answers]
        return cls(
            sum(request.prompt_tokens for request in requests),
            sum(request.cached_tokens for request in requests),
            sum(request.generated for request in requests),
        )


class Reply(ABC):
    """The reply to one call. Of a stream, ``opening`` comes with an answer's first text."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The body of the response when everything is said."""

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """Events before the first text of answer ``index``."""

    @abstractmethod
    def delta(self, index: int, text: str, finish_reason: str | None) -> bytes:
        """Events for new text; ``finish_reason`` with an answer's last."""

    @abstractmethod
    def closing(self) -> bytes:
        """Events after all answers."""


def server_sent(data: dict[str, Any], event: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n" if event is not None else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class _ChunkedReply(Reply):
    """OpenAI's older two APIs: choices, and chunks of them."""

    prefix: ClassVar[str]  # of ids
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, answers: Sequence[Answer], body: ChatBody | CompletionBody) -> None:
        self._answers = answers
        options = body.stream_options
        self._usage_at_end = options is not None and bool(options.include_usage)
        self._usage_always = self._usage_at_end and bool(options and options.continuous_usage_stats)
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    @abstractmethod
    def _said(self, text: str) -> dict[str, Any]:
        """The part of a choice that holds all its text."""

    @abstractmethod
    def _saying(self, text: str) -> dict[str, Any]:
        """The part of a choice that holds new text."""

    def whole(self) -> dict[str, Any]:
        choices = [
            self._choice(index, answer.finish_reason, self._said(answer.text))
            for index, answer in enumerate(self._answers)
        ]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()}

    def opening(self, index: int) -> bytes:
        return b""

    def delta(self, index: int, text: str, finish_reason: str | None) -> bytes:
        return self._chunk([self._choice(index, finish_reason, self._saying(text))], usage=self._usage_always)

    def closing(self) -> bytes:
        usage = self._chunk([], usage=True) if self._usage_at_end else b""
        return usage + b"data: [DONE]\n\n"

    def _chunk(self, choices: list[dict[str, Any]], *, usage: bool) -> bytes:
        chunk: dict[str, Any] = {**self._head, "object": self.chunk_object, "choices": choices}
        if usage:
            chunk["usage"] = self._usage()
        return server_sent(chunk)

    def _choice(self, index: int, finish_reason: str | None, content: dict[str, Any]) -> dict[str, Any]:
        stop = self._answers[index].stop if finish_reason is not None else None
        return {
            "index": index,
            **content,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": stop,
        }

    def _usage(self) -> dict[str, Any]:
        usage = Usage.of(self._answers)
        return {
            "prompt_tokens": usage.prompt,
            "total_tokens": usage.prompt + usage.generated,
            "completion_tokens": usage.generated,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        }


class ChatReply(_ChunkedReply):
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk([self._choice(index, None, delta)], usage=self._usage_always)

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def _saying(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}


class CompletionReply(_ChunkedReply):
    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _saying(self, text: str) -> dict[str, Any]:
        return {"text": text}
