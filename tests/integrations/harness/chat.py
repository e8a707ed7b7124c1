"""``/v1/chat/completions``, as vLLM speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .dialogue import USAGE, Turn, names

KNOWN = names(
    "model messages tools tool_choice parallel_tool_calls stream stream_options temperature top_p n stop"
    " max_tokens max_completion_tokens response_format seed presence_penalty frequency_penalty logprobs"
    " top_logprobs logit_bias user functions function_call reasoning_effort prompt_cache_key"
)
"""What a strict engine accepts in a body."""


def turn_index(body: dict[str, Any]) -> int:
    """How many answers the conversation has already."""
    return sum(message.get("role") == "assistant" for message in body["messages"])


def whole(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tools:
        message["tool_calls"] = [
            {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": tool.text}}
            for tool in turn.tools
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.tools else "stop"}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": usage()}


def pieces(body: dict[str, Any], turn: Turn) -> Iterator[bytes]:
    def piece(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**_head(body, "chat.completion.chunk"), "choices": [choice]})

    yield piece({"role": "assistant", "content": ""})
    if turn.reasoning:
        yield piece({"reasoning_content": turn.reasoning})
    for word in turn.words:
        yield piece({"content": word})
    for index, tool in enumerate(turn.tools):
        half = len(tool.text) // 2
        named = {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": ""}}
        yield piece({"tool_calls": [{"index": index, **named}]})
        for part in (tool.text[:half], tool.text[half:]):
            yield piece({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield piece({}, "tool_calls" if turn.tools else "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        yield sse({**_head(body, "chat.completion.chunk"), "choices": [], "usage": usage()})
    yield b"data: [DONE]\n\n"


def usage() -> dict[str, Any]:
    prompt, completion = USAGE
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def sse(data: dict[str, Any], event: str | None = None) -> bytes:
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {json.dumps(data)}\n\n".encode()


def _head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-fake", "object": kind, "created": 1_700_000_000, "model": body["model"]}
