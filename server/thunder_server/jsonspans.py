"""JSON objects as text with known places, so that members can be taken out or put in without a round trip.

A request body may hold numbers, escapes and key orders that a parser and a printer would not give back as
they were. Here values are parsed to be looked at, and the text outside an edit stays the client's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

_SPACE: Final = re.compile(r"[ \t\r\n]*")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


@dataclass(frozen=True, slots=True)
class Member:
    """``"key": value`` of an object: the parsed value, and where in the text the two stand."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


def scan_object(text: str, start: int = 0) -> tuple[list[Member], int]:
    """The members of the object at ``start`` in order, duplicates too, and where the object ends.

    Raises ValueError (saying what is wrong and where) if it is no object, RecursionError if it is too deep.

    >>> [(m.key, m.value) for m in scan_object('{"a": 1, "a": [2]}')[0]]
    [('a', 1), ('a', [2])]
    """
    members: list[Member] = []
    position = _skip(text, start)
    if text[position : position + 1] != "{":
        raise ValueError("it is no object")
    position = _skip(text, position + 1)
    if text[position : position + 1] == "}":
        return members, position + 1
    while True:
        if text[position : position + 1] != '"':
            raise ValueError(f"a name in double quotes is expected at character {position}")
        key, after = _DECODER.raw_decode(text, position)
        colon = _skip(text, after)
        if text[colon : colon + 1] != ":":
            raise ValueError(f"':' is expected at character {colon}")
        value_start = _skip(text, colon + 1)
        value, end = _DECODER.raw_decode(text, value_start)
        members.append(Member(key, value, position, value_start, end))
        comma = _skip(text, end)
        if text[comma : comma + 1] == "}":
            return members, comma + 1
        if text[comma : comma + 1] != ",":
            raise ValueError(f"',' or '}}' is expected at character {comma}")
        position = _skip(text, comma + 1)


def scan_document(text: str) -> list[Member]:
    """`scan_object` of a text that is one object and nothing else."""
    members, end = scan_object(text)
    if _skip(text, end) != len(text):
        raise ValueError(f"something follows the object at character {end}")
    return members


def without(text: str, member: Member, key: str) -> str | None:
    """The text of ``member``, an object, without ``key`` in it; ``None`` if that leaves it empty."""
    inner, _ = scan_object(text, member.value_start)
    kept = [text[one.start : one.end] for one in inner if one.key != key]
    return text[member.start : member.value_start] + object_of(kept) if kept else None


def object_of(members: Sequence[str]) -> str:
    """An object of ``"key": value`` texts."""
    return "{" + ", ".join(members) + "}"


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None  # it matches the empty text too
    return match.end()
