"""The prompt in a request body as a chain of hashes: what two requests have in common, without a tokenizer.

The first piece is whatever shapes a prompt before its messages (model, tools, template, salt); each message
follows, long ones in several pieces. Bodies are hashed as parsed, so how a client spells its JSON does not
matter. It is one pass of SHA-256, some milliseconds for a megabyte.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from thunder_server.core.prefix import Chain
from thunder_server.request_body import text_chars

PIECE_CHARS: Final = 4096
"""Longer messages are several pieces: two may begin alike."""
_PIECE_IDS: Final = 256  # of a prompt that comes as token ids
_CHARS_PER_ID: Final = 4
_SHAPING: Final = (
    "model",
    "tools",
    "functions",
    "system",
    "instructions",
    "previous_response_id",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "cache_salt",
    "suffix",
)
"""Members that stand before the messages, or change all of them."""


def prompt_chain(path: str, fields: Mapping[str, Any]) -> Chain | None:
    """The chain of a call's prompt, ends in characters; ``None`` if the body holds none, or more than one.

    >>> one = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    >>> two = {"model": "m", "messages": [*one["messages"], {"role": "user", "content": "Well?"}]}
    >>> a, b = (prompt_chain("/v1/chat/completions", body) for body in (one, two))
    >>> a.keys == b.keys[:1], b.ends
    (True, (5, 10))
    """
    try:
        pieces = _pieces(fields)
        if pieces is None:
            return None
        shape = {name: fields[name] for name in _SHAPING if fields.get(name) is not None}
        hasher = sha256(_canonical([path, shape]))
        size = sum(
            text_chars(shape[name], schema=name in ("tools", "functions"))
            for name in ("tools", "functions", "system", "instructions")
            if name in shape
        )
        keys: list[int] = []
        ends: list[int] = []
        if size:
            keys.append(int.from_bytes(hasher.digest()[:8]))
            ends.append(size)
        for piece, chars in pieces:
            hasher.update(len(piece).to_bytes(8))  # where one ends is part of what it is
            hasher.update(piece)
            size += chars
            keys.append(int.from_bytes(hasher.digest()[:8]))
            ends.append(size)
    except (RecursionError, OverflowError):
        return None  # as deep as the parser lets it be; the engine will have its own opinion
    return Chain(tuple(keys), tuple(ends))


def _pieces(fields: Mapping[str, Any]) -> Iterator[tuple[bytes, int]] | None:
    """The pieces of the messages, each with its characters."""
    for name in ("messages", "input"):
        match fields.get(name):
            case [*messages] if messages:
                return _of_messages(messages)
            case str(text) if name == "input" and text:
                return _of_text(b"", text)
    match fields.get("prompt"):
        case str(text) | [str(text)] if text:
            return _of_text(b"", text)
        case [int(), *_] as ids:
            return _of_ids(ids)
        case [[int(), *_] as ids]:
            return _of_ids(ids)
    return None


def _of_messages(messages: list[Any]) -> Iterator[tuple[bytes, int]]:
    for message in messages:
        match message:
            case {"content": str(text), **rest}:
                role = rest.get("role")
                if len(rest) == 1 and type(role) is str:
                    yield from _of_text(role.encode(errors="surrogatepass"), text)
                else:
                    yield from _of_text(_canonical(rest), text, text_chars(rest))
            case _:
                # What is no text (an image) has no length that would tell anything of its tokens.
                yield _canonical(message), text_chars(message) or 1


def _of_text(head: bytes, text: str, chars: int = 0) -> Iterator[tuple[bytes, int]]:
    """One text, after a ``head`` of so many ``chars``."""
    for start in range(0, len(text) or 1, PIECE_CHARS):
        piece = text[start : start + PIECE_CHARS]
        yield head + b"\0" + piece.encode(errors="surrogatepass"), chars + len(piece) or 1
        head, chars = b"", 0


def _of_ids(ids: list[Any]) -> Iterator[tuple[bytes, int]]:
    if not all(type(one) is int and 0 <= one < 1 << 63 for one in ids):
        return
    for start in range(0, len(ids), _PIECE_IDS):
        piece = ids[start : start + _PIECE_IDS]
        yield array("Q", piece).tobytes(), len(piece) * _CHARS_PER_ID


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
