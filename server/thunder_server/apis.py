"""The APIs whose calls are scheduled: where each tells its usage, and how its streams end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from thunder_server.sse import data_of
from thunder_server.usage import UsageReader, of_completion, of_message, of_response


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API. ``usage_option``: its streams tell usage only when ``stream_options`` asks for it, in an event
    of its own. ``last_marks``: bytes found in no event but a stream's last one."""

    read_usage: UsageReader
    usage_option: bool = False
    last_marks: tuple[bytes, ...] = ()

    def is_last(self, event: bytes) -> bool:
        """Whether a client that has this event has all: it may leave now and has cancelled nothing."""
        return contains(event, self.last_marks)


def contains(data: bytes, marks: tuple[bytes, ...]) -> bool:
    """Whether any of the marks is in the data."""
    for mark in marks:  # noqa: SIM110 - a generator would cost more than all the searching
        if mark in data:
            return True
    return False


_COMPLETIONS: Final = Api(read_usage=of_completion, usage_option=True, last_marks=(b"[DONE]\n", b"[DONE]\r"))

SCHEDULED: Final[Mapping[str, Api]] = MappingProxyType(
    {
        "/v1/chat/completions": _COMPLETIONS,
        "/v1/completions": _COMPLETIONS,
        "/v1/responses": Api(
            read_usage=of_response,
            last_marks=(b"response.completed", b"response.incomplete", b"response.failed"),
        ),
        "/v1/messages": Api(read_usage=of_message, last_marks=(b'"message_stop"',)),
    }
)


def parsed(event: bytes) -> Mapping[str, Any] | None:
    """The JSON object that an event carries, if it does."""
    data = data_of(event)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
