"""The JSON bodies of our own API: bounded, and nothing in them that could not be written out again."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

from aiohttp import web

from thunder_server.errors import ApiError, invalid, too_large

MAX_BODY: Final = 8 * 2**20
"""Bytes; the largest batch of events that our SDK sends is well under 2 MiB."""
MAX_DEPTH: Final = 64


async def read_object(request: web.Request, limit: int = MAX_BODY) -> dict[str, Any]:
    """The JSON object in the body of ``request``, whatever its content type. Raises `ApiError`."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "unsupported_encoding", "Send this body uncompressed.", param="Content-Encoding")
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    raw = bytearray()
    async for chunk in request.content.iter_any():
        raw += chunk
        if len(raw) > limit:
            raise too_large(limit)
    return parse_object(bytes(raw))


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``; nothing (no body at all) is an empty one. Raises `ApiError`.

    >>> parse_object(b'{"a": null, "b": 1}')
    {'b': 1}
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise invalid("the body is not UTF-8") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except ValueError as malformed:
        raise invalid(f"the body is not valid JSON: {malformed}") from None
    if not isinstance(value, dict):
        raise invalid(f"the body must be a JSON object, not {kind_of(value)}")
    _check_text(value)
    return {key: inner for key, inner in value.items() if inner is not None}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is out of range")
    return number


def _check_text(value: object) -> None:
    """No lone surrogates (they have no UTF-8) and no nesting that would fail when written out again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (
                [*outer.keys(), *outer.values()]
                if isinstance(outer, dict)
                else outer
                if isinstance(outer, list)
                else ()
            )
        ]
        for text in level:
            if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
                raise invalid("the body holds a lone surrogate, which is no text")
        if not level:
            return
    raise invalid(f"the body is nested deeper than {MAX_DEPTH} levels")


_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_KINDS: Final = {
    list: "an array",
    str: "a string",
    bool: "a truth value",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), "a number")
