"""A request body: read once for what scheduling needs, forwarded as it came wherever nothing must change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from thunder_server.codecs import Undecodable, decode
from thunder_server.errors import invalid
from thunder_server.jsonspans import Member, object_of, scan_document, scan_object, without

_OURS: Final = "program_id"
_OUR_OBJECTS: Final = ("extra_body", "metadata")
# What we read ourselves must not be said twice: the engine might read the other one.
_ONCE: Final = frozenset({_OURS, *_OUR_OBJECTS, "vllm_xargs", "model", "stream", "stream_options"})
_USAGE_OPTION: Final = '"stream_options": {"include_usage": true}'
_CHARS_PER_TOKEN: Final = 4
_DEPTH: Final = "The request body is nested too deeply."


@dataclass(frozen=True, slots=True)
class Body:
    """``raw`` is what the client sent, ``forward`` what the engine gets (often the same object).

    ``fields`` are the parsed top-level members. ``encoded``: the body is compressed and passes as it came;
    ``fields`` is empty if it is so in a way unknown here. ``withhold_usage``: usage was asked for in the
    client's stead, who must not see it.
    """

    raw: bytes
    forward: bytes
    fields: Mapping[str, Any]
    withhold_usage: bool = False
    encoded: bool = False

    @property
    def model(self) -> str | None:
        model = self.fields.get("model")
        return model if isinstance(model, str) and model else None

    @property
    def stream(self) -> bool:
        return self.fields.get("stream") is True

    @property
    def max_output_tokens(self) -> int | None:
        for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            value = self.fields.get(name)
            if type(value) is int and 0 < value < 1 << 40:
                return value
        return None

    def forward_with(self, priority: int) -> bytes:
        """What the engine gets, and this ``priority`` in it, unless it is 0 (as engines take none for) or the
        client has named one itself."""
        if not priority or self.encoded or "priority" in self.fields:
            return self.forward
        members = self.forward.rstrip().removesuffix(b"}").rstrip()
        comma = b"" if members.endswith(b"{") else b", "
        return b'%s%s"priority": %d}' % (members, comma, priority)


def read_body(raw: bytes, encoding: str, *, usage_option: bool, limit: int) -> Body:
    """Look into a JSON request body. ``usage_option``: streams of this API report usage when asked to.

    A compressed body is decoded (to at most ``limit`` bytes) only to be looked at: it is forwarded as it
    came. Raises `ApiError` 400 that says what is wrong.
    """
    if encoding and encoding != "identity":
        try:
            decoded = decode(raw, encoding, limit)
        except Undecodable:
            return Body(raw, raw, {}, encoded=True)
        text, members = _scan(decoded)
        return Body(raw, raw, {member.key: member.value for member in members}, encoded=True)
    text, members = _scan(raw)
    fields = {member.key: member.value for member in members}
    add_usage = usage_option and fields.get("stream") is True and _may_add_usage(fields.get("stream_options"))
    if not add_usage and not _is_ours(fields):
        return Body(raw, raw, fields)
    forward = _edited(text, members, add_usage=add_usage)
    return Body(raw, forward, fields, withhold_usage=add_usage)


def _scan(raw: bytes) -> tuple[str, Sequence[Member]]:
    if not raw:
        raise invalid("The request body is empty; send a JSON object.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as bad:
        raise invalid(f"The request body is no UTF-8 text (byte {bad.start}).") from None
    try:
        members = scan_document(text)
    except RecursionError:
        raise invalid(_DEPTH) from None
    except json.JSONDecodeError as bad:
        raise invalid(f"The request body is no valid JSON: {bad.msg} at character {bad.pos}.") from None
    except ValueError as bad:
        raise invalid(f"The request body is no valid JSON object: {bad}.") from None
    seen: set[str] = set()
    for member in members:
        if member.key in seen and member.key in _ONCE:
            raise invalid(f"{member.key!r} is given twice.", member.key)
        seen.add(member.key)
    return text, members


def _is_ours(fields: Mapping[str, Any]) -> bool:
    return _OURS in fields or any(
        isinstance(inner := fields.get(name), dict) and _OURS in inner for name in _OUR_OBJECTS
    )


def _may_add_usage(options: object) -> bool:
    """Whether the client did not ask for usage in a way that leaves room to ask for it. What is malformed
    stays so: it is the engine's to refuse."""
    if options is None:
        return True
    return isinstance(options, dict) and options.get("include_usage") in (None, False)


def _edited(text: str, members: Sequence[Member], *, add_usage: bool) -> bytes:
    kept: list[str] = []
    for member in members:
        if member.key == _OURS:
            continue
        piece: str | None = text[member.start : member.end]
        if member.key in _OUR_OBJECTS and isinstance(member.value, dict) and _OURS in member.value:
            piece = without(text, member, _OURS)
        elif member.key == "stream_options" and add_usage:
            piece = _with_usage(text, member)
        if piece is not None:
            kept.append(piece)
    if add_usage and not any(member.key == "stream_options" for member in members):
        kept.append(_USAGE_OPTION)
    return object_of(kept).encode()


def _with_usage(text: str, options: Member) -> str:
    if options.value is None:
        return _USAGE_OPTION
    inner, _ = scan_object(text, options.value_start)
    kept = [text[one.start : one.end] for one in inner if one.key != "include_usage"]
    return text[options.start : options.value_start] + object_of([*kept, '"include_usage": true'])


def prompt_chars(fields: Mapping[str, Any]) -> int:
    """Characters of text that the model will read: messages, tools, instructions. Images and other binary
    content are left out, as their size in the body says nothing about their tokens.

    >>> prompt_chars({"messages": [{"role": "user", "content": [{"type": "text", "text": "four"}]}]})
    4
    """
    total = 0
    for name in ("messages", "prompt", "input", "system", "instructions"):
        total += text_chars(fields.get(name))
    if (tools := fields.get("tools")) is not None:
        total += text_chars(tools, schema=True)
    return total


def _split_plain(messages: list[Any]) -> tuple[list[Any], int]:
    """Messages that need a closer look, and the characters of those that are just a role and a text: there
    may be hundreds of these in every call."""
    rest: list[Any] = []
    total = 0
    for message in messages:
        if type(message) is dict and len(message) == 2 and type(text := message.get("content")) is str:
            total += len(text)
        else:
            rest.append(message)
    return rest, total


# Members of messages that are text to the model. Everything else is structure or binary.
_TEXT_KEYS: Final = frozenset(
    {
        "content",
        "text",
        "arguments",
        "input",
        "output",
        "thinking",
        "reasoning",
        "reasoning_content",
        "tool_calls",
    }
    | {"function", "refusal", "summary"}
)


def text_chars(value: object, *, schema: bool = False) -> int:
    """Iterative, as bodies come as deep as the parser lets them."""
    total = 0
    if isinstance(value, list) and not schema:
        value, plain = _split_plain(value)
        total += plain
    pending: list[object] = [value]
    while pending:
        match pending.pop():
            case str() as text:
                if not text.startswith("data:"):
                    total += len(text)
            case list() as items:
                pending += items
            case dict() as table:
                for key, inner in table.items():
                    if schema:
                        total += len(key)
                    if schema or key in _TEXT_KEYS:
                        pending.append(inner)
            case int():
                total += _CHARS_PER_TOKEN  # a prompt may come as token ids
            case _:
                pass
    return total
