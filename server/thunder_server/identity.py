"""Whose call this is: many clients say it in many ways, the first that matches wins.

What is ours (the path, ``X-Thunder-*``, ``program_id`` in the body and in ``extra_body``) must follow the id
grammar, so that a typing error is noticed. What other systems use as session ids may hold anything and is
hashed where it does not fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from thunder_sdk import wire
from thunder_server.errors import invalid

Headers = CIMultiDictProxy[str]

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one request says about its program. ``program_id`` ``None``: nothing; it stands for itself."""

    program_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    priority: int | None = None
    max_wait_s: float | None = None
    final: bool = False
    is_retry: bool = False


def read_identity(path_id: str | None, headers: Headers, fields: Mapping[str, Any]) -> Identity:
    """The identity of a request from its path (``/p/{id}/…``), headers and parsed body.

    Raises `ApiError` 400 naming the place that is wrong.
    """
    program_id = _program_id(path_id, headers, fields)
    parent_id = _id_header(headers, wire.PARENT_ID) or _foreign(headers.get(wire.DYNAMO_PARENT_SESSION_ID))
    return Identity(
        program_id=program_id,
        # An agent with fixed headers names itself there, for the sub-agents that inherit them.
        parent_id=None if parent_id == program_id else parent_id,
        group=_id_header(headers, wire.GROUP),
        priority=_priority(headers),
        max_wait_s=_max_wait(headers),
        final=_flag(headers, wire.FINAL) or headers.get(wire.DYNAMO_SESSION_FINAL, "").lower() in _TRUE,
        is_retry=_flag(headers, wire.RETRY) or _is_stainless_retry(headers),
    )


def _program_id(path_id: str | None, headers: Headers, fields: Mapping[str, Any]) -> str | None:
    # All of ours are checked, also those that do not win.
    ours = (
        _ours(path_id, "the path /p/{id}/"),
        _id_header(headers, wire.PROGRAM_ID),
        _ours(fields.get("program_id"), "program_id"),
        _ours(_inner(fields, "extra_body"), "extra_body.program_id"),
    )
    for candidate in ours:
        if candidate is not None:
            return candidate
    foreign = (
        _foreign(_inner(fields, "metadata")),
        _foreign(_agentic_context(fields)),
        *(_foreign(headers.get(name)) for name in wire.FOREIGN_IDENTITY),
        _foreign(_baggage(headers)),
    )
    return next((candidate for candidate in foreign if candidate is not None), None)


def _ours(value: object, place: str) -> str | None:
    if value is None or value == "":
        return None
    if not wire.is_valid_id(value):
        raise invalid(f"{place} is no program id: it must be {wire.ID_GRAMMAR}.", place)
    return value


def _foreign(value: object) -> str | None:
    if value is None or value == "":
        return None
    return wire.foreign_id(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _inner(fields: Mapping[str, Any], name: str) -> object:
    inner = fields.get(name)
    return inner.get("program_id") if isinstance(inner, dict) else None


def _agentic_context(fields: Mapping[str, Any]) -> object:
    extra = fields.get("vllm_xargs")
    context = extra.get("agentic_context") if isinstance(extra, dict) else None
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except (ValueError, RecursionError):
            return None
    return context.get("program_id") if isinstance(context, dict) else None


def _baggage(headers: Headers) -> str | None:
    for header in headers.getall(wire.BAGGAGE, ()):
        for entry in header.split(","):
            key, equals, value = entry.partition(";")[0].partition("=")
            if equals and key.strip() == wire.BAGGAGE_PROGRAM_ID:
                return unquote(value.strip())
    return None


def _only(headers: Headers, name: str) -> str | None:
    """The value of one of our headers; a second, different one is a contradiction."""
    values = headers.getall(name, ())
    if not values:
        return None
    if any(value != values[0] for value in values):
        raise invalid(f"{name} is given twice with different values.", name)
    return values[0]


def _id_header(headers: Headers, name: str) -> str | None:
    return _ours(_only(headers, name), name)


def _priority(headers: Headers) -> int | None:
    value = _only(headers, wire.PRIORITY)
    if not value:
        return None
    try:
        priority = int(_plain(value))
    except ValueError:
        priority = wire.MAX_PRIORITY + 1
    if abs(priority) > wire.MAX_PRIORITY:
        raise invalid(f"{wire.PRIORITY} must be a whole number; higher is served earlier.", wire.PRIORITY)
    return priority


def _max_wait(headers: Headers) -> float | None:
    value = _only(headers, wire.MAX_WAIT)
    if not value:
        return None
    try:
        seconds = float(_plain(value))
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise invalid(f"{wire.MAX_WAIT} must be seconds, 0 or more; 0 means only if free now.", wire.MAX_WAIT)
    return seconds


def _plain(number: str) -> str:
    """Python also reads ``1_0`` and digits of other scripts; nobody who sends a header means those."""
    if "_" in number or not number.isascii():
        raise ValueError("no plain number")
    return number


def _flag(headers: Headers, name: str) -> bool:
    value = (_only(headers, name) or "").lower()
    if value not in _TRUE and value not in _FALSE:
        raise invalid(f"{name} must be true or false.", name)
    return value in _TRUE


def _is_stainless_retry(headers: Headers) -> bool:
    count = headers.get(wire.STAINLESS_RETRY_COUNT, "0")
    return count.isdecimal() and count.isascii() and count.strip("0") != ""
