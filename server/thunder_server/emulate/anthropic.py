"""``/v1/messages``: Anthropic's API, which vLLM speaks too."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from thunder_server.emulate.answers import Answer
from thunder_server.emulate.replies import Reply, Usage, server_sent
from thunder_server.emulate.requests import (
    Body,
    Content,
    GeneratingBody,
    Message,
    Tokens,
    Tools,
    encode_messages,
)


class CountBody(Body):
    """What ``/v1/messages/count_tokens`` is asked, and the prompt of a call."""

    system: Content = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Tools = None

    def encode(self) -> bytes:
        system = [Message(role="system", content=self.system)] if self.system else []
        return encode_messages([*system, *self.messages], self.tools)


class MessagesBody(CountBody, GeneratingBody):
    prompt_field = "messages"

    max_tokens: Tokens
    stop_sequences: list[str] | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def stops(self) -> Sequence[str]:
        return self.stop_sequences or []

    def encode_prompts(self) -> Sequence[bytes]:
        return [self.encode()]


class MessagesReply(Reply):
    """A message with one block of text."""

    def __init__(self, model: str, answers: Sequence[Answer], _body: MessagesBody) -> None:
        (self._answer,) = answers
        self._head = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def whole(self) -> dict[str, Any]:
        content = [{"type": "text", "text": self._answer.text}]
        return {**self._head, "content": content, **self._end(), "usage": self._usage()}

    def opening(self, index: int) -> bytes:
        start: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return self._event("message_start", message=start) + self._event(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )

    def delta(self, index: int, text: str, finish_reason: str | None) -> bytes:
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def closing(self) -> bytes:
        return (
            self._event("content_block_stop", index=0)
            + self._event("message_delta", delta=self._end(), usage=self._usage())
            + self._event("message_stop")
        )

    def _end(self) -> dict[str, Any]:
        stop = self._answer.stop
        if stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        natural = self._answer.finish_reason == "stop"
        return {"stop_reason": "end_turn" if natural else "max_tokens", "stop_sequence": None}

    def _usage(self) -> dict[str, int]:
        usage = Usage.of([self._answer])
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.generated,
        }

    def _event(self, kind: str, **data: object) -> bytes:
        return server_sent({"type": kind, **data}, kind)
