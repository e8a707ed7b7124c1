"""Watches a stream go by: counts its tokens, and takes out the one event that the client must not see."""

from __future__ import annotations

from typing import Final

from thunder_server.apis import Api, contains, parsed
from thunder_server.sse import EventSplitter
from thunder_server.usage import NO_USAGE

_USAGE: Final = b'"usage"'
_NO_USAGE_YET: Final = (b'"usage":null', b'"usage": null')
_ERRORS: Final = (b'data: {"error"', b'data:{"error"', b"event: error")


class StreamMeter:
    """Bytes of one SSE answer in, the bytes for the client out: whole events, untouched.

    ``usage`` is what the engine told so far, ``events`` how many with data came (roughly tokens),
    ``complete`` whether the stream's last event was among them, ``failed`` whether an error was.
    """

    __slots__ = ("_api", "_splitter", "_withhold", "complete", "events", "failed", "usage")

    def __init__(self, api: Api, *, withhold_usage: bool) -> None:
        self._api = api
        self._splitter = EventSplitter()
        self._withhold = withhold_usage
        self.usage = NO_USAGE
        self.events = 0
        self.complete = False
        self.failed = False

    def feed(self, chunk: bytes) -> bytes:
        """What of the stream may go on, now that ``chunk`` has come; often ``chunk`` itself."""
        if self._is_plain(chunk):
            self.events += chunk.count(b"\n\n")
            return chunk
        passed = [event for event in self._splitter.feed(chunk) if self._passes(event)]
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def _is_plain(self, chunk: bytes) -> bool:
        """Whether these are whole events that need no look each: what nearly all chunks are."""
        return (
            self._splitter.empty
            and chunk.endswith(b"\n\n")
            and _USAGE not in chunk
            and not self._api.is_last(chunk)
            and not contains(chunk, _ERRORS)
        )

    def rest(self) -> bytes:
        """What is left at a clean end: an event without its empty line, if any."""
        rest = self._splitter.rest()
        return rest if not rest or self._passes(rest) else b""

    def _passes(self, event: bytes) -> bool:
        if _USAGE in event and not contains(event, _NO_USAGE_YET):
            return self._passes_usage(event)
        self.events += event.startswith((b"data:", b"event:"))
        if self._api.is_last(event):
            self.complete = True
        elif event.startswith(_ERRORS):
            self.failed = True
        return True

    def _passes_usage(self, event: bytes) -> bool:
        value = parsed(event)
        if value is None:
            return True
        self.usage = self.usage.updated(self._api.read_usage(value))
        if self._api.is_last(event):
            self.complete = True
        return not (self._withhold and value.get("choices") == [] and isinstance(value.get("usage"), dict))
