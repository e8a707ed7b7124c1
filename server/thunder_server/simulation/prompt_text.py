"""What requests say, reduced to what a prefix cache sees of it: beginnings that are equal or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from thunder_server.simulation.jsonlines import Record, TraceError

_PIECE = 256  # characters of a text that comes as one piece


class Link(NamedTuple):
    """A beginning of a prompt: what stands for all of it, and its characters."""

    digest: int
    chars: int


class Sized(Protocol):
    """Whatever has a prompt of known size."""

    @property
    def prompt_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt as the beginnings that it has, message by message. Equal digests mean equal beginnings."""

    links: tuple[Link, ...]

    @property
    def whole(self) -> int:
        return self.links[-1].digest

    @property
    def chars(self) -> int:
        return self.links[-1].chars

    def common(self, other: Chain) -> Link | None:
        """The longest beginning that both have."""
        found = None
        for one, two in zip(self.links, other.links, strict=False):
            if one.digest != two.digest:
                break
            found = one
        return found

    def tokens(self, link: Link, call: Sized) -> int:
        """Tokens of a beginning, if characters weigh the same everywhere in the prompt."""
        return round(call.prompt_tokens * link.chars / max(1, self.chars))


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and whether what a tool found stands at its end."""

    chain: Chain
    after_tool: bool


def prompt_of(body: Record, *, answer: bool = False) -> Text | None:
    """The prompt of a request in any of OpenAI's and Anthropic's shapes (or the text of an ``answer``);
    ``None`` where there is none.

    >>> request = {"messages": [{"role": "user", "content": "fix it"}, {"role": "tool", "content": "done"}]}
    >>> text = prompt_of(Record(request, "log.jsonl, line 1"))
    >>> text.after_tool, len(text.chain.links)
    (True, 2)
    """
    parts = _answer_parts(body) if answer else _request_parts(body)
    if parts is None:
        return None
    pieces = list(parts)
    if not pieces:
        return None
    return Text(Chain(tuple(_links(pieces))), _is_tool_result(pieces[-1]))


def _request_parts(body: Record) -> list[object] | None:
    for name in ("messages", "input", "prompt"):
        if name in body:
            value = body.fields[name]
            break
    else:
        return None
    head = [body.fields[name] for name in ("tools", "system", "instructions") if name in body]
    if isinstance(value, str):
        return [*head, *(value[at : at + _PIECE] for at in range(0, len(value), _PIECE))]
    if not isinstance(value, list):
        raise TraceError(f"{body.where}: {name!r} must be a list or a text, not {type(value).__name__}")
    return [*head, *value]


def _answer_parts(body: Record) -> list[object] | None:
    for name in ("choices", "content", "output"):
        if isinstance(value := body.fields.get(name), list):
            return [one.get("message", one) if isinstance(one, dict) else one for one in value]
    return None


def _links(parts: Iterable[object]) -> Iterator[Link]:
    running = hashlib.blake2b(digest_size=8)
    chars = 0
    for part in parts:
        text = part if isinstance(part, str) else json.dumps(part, sort_keys=True, ensure_ascii=False)
        running.update(text.encode(errors="surrogatepass") + b"\0")
        chars += len(text)
        yield Link(int.from_bytes(running.digest(), "big"), chars)


def _is_tool_result(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("role") == "tool" or part.get("type") == "function_call_output":
        return True
    content = part.get("content")
    return isinstance(content, list) and any(
        isinstance(one, dict) and one.get("type") == "tool_result" for one in content
    )
