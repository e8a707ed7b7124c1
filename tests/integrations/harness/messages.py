"""``/v1/messages``: Anthropic's API, which vLLM speaks too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .chat import sse
from .dialogue import USAGE, Turn, names

KNOWN = names(
    "model messages system tools tool_choice stream temperature top_p top_k max_tokens stop_sequences"
    " metadata thinking"
)


def turn_index(body: dict[str, Any]) -> int:
    return sum(message.get("role") == "assistant" for message in body["messages"])


def whole(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    prompt, completion = USAGE
    return {
        **_head(body),
        "content": _blocks(turn),
        "stop_reason": _reason(turn),
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": completion},
    }


def pieces(body: dict[str, Any], turn: Turn) -> Iterator[bytes]:
    prompt, completion = USAGE

    def event(kind: str, **data: Any) -> bytes:
        return sse({"type": kind, **data}, kind)

    begun = {**_head(body), "content": [], "stop_reason": None, "stop_sequence": None}
    yield event("message_start", message={**begun, "usage": {"input_tokens": prompt, "output_tokens": 0}})
    for index, block in enumerate(_blocks(turn)):
        if block["type"] == "text":
            empty, deltas = (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": word} for word in turn.words],
            )
        else:
            tool = next(tool for tool in turn.tools if tool.id == block["id"])
            empty, deltas = {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": tool.text}]
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ended = {"stop_reason": _reason(turn), "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": completion})
    yield event("message_stop")


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": turn.text}] if turn.text or not turn.tools else []
    return text + [
        {"type": "tool_use", "id": tool.id, "name": tool.name, "input": dict(tool.arguments)}
        for tool in turn.tools
    ]


def _reason(turn: Turn) -> str:
    return "tool_use" if turn.tools else "end_turn"


def _head(body: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg_fake", "type": "message", "role": "assistant", "model": body["model"]}
