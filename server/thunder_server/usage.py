"""What a call cost by the engine's own count: where each API keeps its usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call; ``None`` where the engine said nothing. ``prompt_tokens`` includes the cached."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def updated(self, later: Usage) -> Usage:
        """This usage with what a later one of the same call says instead."""
        return Usage(
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.completion_tokens if later.completion_tokens is None else later.completion_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


NO_USAGE: Final = Usage()

UsageReader = Callable[[Mapping[str, Any]], Usage]
"""Reads one answer, or one event of a stream; `NO_USAGE` where that holds none. Never raises."""


def _count(table: Mapping[str, Any], name: str) -> int | None:
    value = table.get(name)
    return value if type(value) is int and 0 <= value < 1 << 50 else None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def of_completion(answer: Mapping[str, Any]) -> Usage:
    """``usage`` of chat and text completions, whole or in a chunk.

    >>> of_completion({"usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}})
    Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=None)
    """
    usage = _table(answer.get("usage"))
    return Usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(_table(usage.get("prompt_tokens_details")), "cached_tokens"),
    )


def of_response(answer: Mapping[str, Any]) -> Usage:
    """``usage`` of a response, or of the ``response.completed`` event that carries one."""
    usage = _table(_table(answer.get("response", answer)).get("usage"))
    return Usage(
        _count(usage, "input_tokens"),
        _count(usage, "output_tokens"),
        _count(_table(usage.get("input_tokens_details")), "cached_tokens"),
    )


def of_message(answer: Mapping[str, Any]) -> Usage:
    """``usage`` of a message, or of its ``message_start`` and ``message_delta`` events.

    Its ``input_tokens`` are those that were neither read from nor written to the cache.
    """
    usage = _table(_table(answer.get("message", answer)).get("usage"))
    fresh = _count(usage, "input_tokens")
    cached = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    prompt = None if fresh is None else fresh + (cached or 0) + (written or 0)
    return Usage(prompt, _count(usage, "output_tokens"), cached)
