"""``/v1/responses``: OpenAI's newer API, as far as a stand-in goes: nothing is stored, no tool is called."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from thunder_server.emulate import tokens
from thunder_server.emulate.answers import Answer
from thunder_server.emulate.replies import Reply, Usage, server_sent
from thunder_server.emulate.requests import GeneratingBody, Tokens, Tools


class ResponsesBody(GeneratingBody):
    prompt_field = "input"

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    tools: Tools = None
    max_output_tokens: Tokens | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def stops(self) -> Sequence[str]:
        return ()

    def encode_prompts(self) -> Sequence[bytes]:
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        if self.instructions:
            items = [{"role": "system", "content": self.instructions}, *items]
        return [tokens.encode_chat(map(_as_message, items), self.tools)]


def _as_message(item: dict[str, Any]) -> dict[str, Any]:
    """Calls of functions, their outputs and the like are told under their type."""
    role, content = item.get("role"), item.get("content")
    if isinstance(role, str) and isinstance(content, str | list):
        return {"role": role, "content": content}
    return {"role": str(item.get("type", "item")), "content": [item]}


class ResponsesReply(Reply):
    """A response with one message of text."""

    def __init__(self, model: str, answers: Sequence[Answer], body: ResponsesBody) -> None:
        (self._answer,) = answers
        self._body = body
        self._model = model
        self._id = f"resp_{uuid.uuid4().hex}"
        self._item = f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sent = 0

    def whole(self) -> dict[str, Any]:
        complete = self._answer.finish_reason == "stop"
        return self._response(
            "completed" if complete else "incomplete",
            output=[self._message()],
            incomplete_details=None if complete else {"reason": "max_output_tokens"},
            usage=self._usage(),
        )

    def opening(self, index: int) -> bytes:
        response = self._response("in_progress", output=[], incomplete_details=None, usage=None)
        item = {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        return (
            self._event("response.created", response=response)
            + self._event("response.in_progress", response=response)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place(), part=self._part(""))
        )

    def delta(self, index: int, text: str, finish_reason: str | None) -> bytes:
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self) -> bytes:
        response = self.whole()
        text = self._answer.text
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=self._part(text))
            + self._event("response.output_item.done", output_index=0, item=self._message())
            + self._event(f"response.{response['status']}", response=response)
        )

    def _response(self, status: str, **rest: object) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": status,
            "error": None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": self._body.tools or [],
            "top_p": 1.0,
            **rest,
        }

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "completed" if self._answer.finish_reason == "stop" else "incomplete",
            "content": [self._part(self._answer.text)],
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _usage(self) -> dict[str, Any]:
        usage = Usage.of([self._answer])
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.generated,
        }

    def _event(self, kind: str, **data: object) -> bytes:
        self._sent += 1
        return server_sent({"type": kind, "sequence_number": self._sent - 1, **data}, kind)
