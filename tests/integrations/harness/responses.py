"""``/v1/responses``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .chat import sse
from .dialogue import USAGE, Turn, names

KNOWN = names(
    "model input instructions tools tool_choice parallel_tool_calls stream temperature top_p"
    " max_output_tokens metadata previous_response_id reasoning store text truncation user include"
    " service_tier stream_options prompt"
    " background max_tool_calls top_logprobs prompt_cache_key safety_identifier"
)


def turn_index(body: dict[str, Any]) -> int:
    """How many answers the conversation has: runs of items that came from the model."""
    if isinstance(body["input"], str):
        return 0
    from_model = [
        item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")
        for item in body["input"]
    ]
    return sum(theirs for theirs, _ in itertools.groupby(from_model))


def whole(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    return _response(body, "completed", _items(turn), _usage())


def pieces(body: dict[str, Any], turn: Turn) -> Iterator[bytes]:
    numbers = itertools.count()

    def event(kind: str, **data: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(numbers), **data}, kind)

    begun = _response(body, "in_progress", [], None)
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(_items(turn)):
        place = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "message":
                part = item["content"][0]
                text = {**place, "content_index": 0}
                yield event(
                    "response.output_item.added",
                    output_index=index,
                    item={**item, "status": "in_progress", "content": []},
                )
                yield event("response.content_part.added", **text, part={**part, "text": ""})
                for word in turn.words:
                    yield event("response.output_text.delta", **text, delta=word, logprobs=[])
                yield event("response.output_text.done", **text, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **text, part=part)
            case "function_call":
                begun_item = {**item, "status": "in_progress", "arguments": ""}
                arguments = item["arguments"]
                yield event("response.output_item.added", output_index=index, item=begun_item)
                yield event("response.function_call_arguments.delta", **place, delta=arguments)
                yield event(
                    "response.function_call_arguments.done", **place, arguments=arguments, name=item["name"]
                )
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=whole(body, turn))


def _items(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text or not turn.tools:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": "msg_fake",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    items += [
        {
            "id": f"fc_{tool.id}",
            "type": "function_call",
            "status": "completed",
            "call_id": tool.id,
            "name": tool.name,
            "arguments": tool.text,
        }
        for tool in turn.tools
    ]
    return items


def _response(
    body: dict[str, Any], status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "id": f"resp_{turn_index(body)}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": body["model"],
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "usage": usage,
    }


def _usage() -> dict[str, Any]:
    prompt, completion = USAGE
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
