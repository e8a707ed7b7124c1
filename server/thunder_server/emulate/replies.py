"""OpenAI's objects around an answer: the whole one, or the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from thunder_server.emulate.answers import Answer
from thunder_server.emulate.requests import StreamOptions


class Reply(ABC):
    """One call's reply: a choice for each of its answers."""

    prefix: ClassVar[str]  # of ids
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, answers: Sequence[Answer], options: StreamOptions | None = None) -> None:
        self._answers = answers
        self._usage_at_end = options is not None and bool(options.include_usage)
        self._usage_always = self._usage_at_end and bool(options and options.continuous_usage_stats)
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    @abstractmethod
    def _choice(self, index: int, answer: Answer) -> dict[str, Any]: ...

    @abstractmethod
    def _delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]: ...

    def whole(self) -> dict[str, Any]:
        """The body of the response when everything is said."""
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()}

    def opening(self, index: int) -> bytes:
        """Events before a choice's first text."""
        return b""

    def delta(self, index: int, text: str, finish_reason: str | None) -> bytes:
        """The event for new text of a choice."""
        return self._event([self._delta(index, text, finish_reason)], usage=self._usage_always)

    def closing(self) -> bytes:
        """Events after all choices."""
        usage = self._event([], usage=True) if self._usage_at_end else b""
        return usage + b"data: [DONE]\n\n"

    def _event(self, choices: Iterable[dict[str, Any]], *, usage: bool) -> bytes:
        chunk: dict[str, Any] = {**self._head, "object": self.chunk_object, "choices": [*choices]}
        if usage:
            chunk["usage"] = self._usage()
        return b"data: %s\n\n" % json.dumps(chunk, separators=(",", ":")).encode()

    def _usage(self) -> dict[str, Any]:
        requests = [answer.request for answer in self._answers]
        prompt = sum(request.prompt_tokens for request in requests)
        generated = sum(request.generated for request in requests)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": sum(request.cached_tokens for request in requests)},
        }


class ChatReply(Reply):
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        return self._event(
            [_choice(index, None, delta={"role": "assistant", "content": ""})], usage=self._usage_always
        )

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return _choice(index, answer.finish_reason, message={"role": "assistant", "content": answer.text})

    def _delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return _choice(index, finish_reason, delta={"content": text})


class CompletionReply(Reply):
    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return _choice(index, answer.finish_reason, text=answer.text)

    def _delta(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return _choice(index, finish_reason, text=text)


def _choice(index: int, finish_reason: str | None, **content: object) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
