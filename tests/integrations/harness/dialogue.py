"""What an engine says in a test: turns of a conversation, and faults that come in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tool:
    """One tool call that the model makes."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def text(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True)
class Turn:
    """One answer of the model."""

    text: str = ""
    tools: tuple[Tool, ...] = ()
    reasoning: str = ""

    def numbered(self, index: int) -> Turn:
        """With ids for tool calls that have none: ``call_{turn}_{position}``."""
        tools = tuple(
            Tool(tool.name, tool.arguments, tool.id or f"call_{index}_{position}")
            for position, tool in enumerate(self.tools)
        )
        return Turn(self.text, tools, self.reasoning)

    @property
    def words(self) -> list[str]:
        return [word + " " for word in self.text.split(" ")] if self.text else []


def says(text: str, *, reasoning: str = "") -> Turn:
    """A turn of words."""
    return Turn(text, reasoning=reasoning)


def calls(*tools: Tool, text: str = "") -> Turn:
    """A turn of tool calls, in parallel if there are several."""
    return Turn(text, tools)


@dataclass(frozen=True)
class Fails:
    """An engine's error."""

    status: int
    message: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cuts:
    """The connection dies: after `after` pieces of a stream, at once otherwise."""

    after: int = 2


@dataclass(frozen=True)
class Hangs:
    """`after` pieces of a stream (or nothing), then silence until the client goes."""

    after: int = 0


@dataclass(frozen=True)
class Plays:
    """An engine's answer as it was recorded, in pieces of `size` bytes if it is a stream."""

    body: bytes
    content_type: str
    size: int = 97


Fault = Fails | Cuts | Hangs | Plays


def names(text: str) -> frozenset[str]:
    """The fields of a body, written as a line of words."""
    return frozenset(text.split())


USAGE = (100, 7)
"""Prompt and completion tokens of every answer."""
