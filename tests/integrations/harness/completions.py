"""``/v1/completions``: text alone, no tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .chat import sse, usage
from .dialogue import Turn, names

KNOWN = names(
    "model prompt stream stream_options temperature top_p n stop max_tokens seed presence_penalty"
    " frequency_penalty logprobs logit_bias user suffix echo best_of"
)


def turn_index(body: dict[str, Any]) -> int:
    """Text has no turns."""
    return 0


def whole(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    return {**_choice(body, turn.text, "stop"), "usage": usage()}


def pieces(body: dict[str, Any], turn: Turn) -> Iterator[bytes]:
    for word in turn.words:
        yield sse(_choice(body, word, None))
    yield sse(_choice(body, "", "stop"))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield sse({**_choice(body, "", None), "choices": [], "usage": usage()})
    yield b"data: [DONE]\n\n"


def _choice(body: dict[str, Any], text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    return {
        "id": "cmpl-fake",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [choice],
    }
