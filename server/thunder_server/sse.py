"""Server-sent events, cut where they end and otherwise left as they are.

The proxy passes the engine's own bytes. It only has to know where an event is complete, so that a stream
that breaks never leaves half an event before our error, and which one event is the usage that the client
did not ask for.
"""

from __future__ import annotations

import re
from typing import Final

# An event ends with an empty line; lines end with \n, \r\n or \r. A single \r at the end of what has come
# so far may be the first half of \r\n, so it ends nothing yet.
_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_END: Final = 4


class EventSplitter:
    """Bytes in at any split, complete events out as exactly the bytes that came.

    >>> splitter = EventSplitter()
    >>> splitter.feed(b"data: 1\\n\\ndata"), splitter.feed(b": 2\\r\\n"), splitter.feed(b"\\r\\n")
    ([b'data: 1\\n\\n'], [], [b'data: 2\\r\\n\\r\\n'])
    >>> splitter.rest()
    b''
    """

    __slots__ = ("_scanned", "_tail")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._scanned = 0

    @property
    def empty(self) -> bool:
        """Whether nothing of an incomplete event is held."""
        return not self._tail

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that ``chunk`` completes."""
        if not self._tail and chunk.endswith(b"\n\n") and b"\r" not in chunk:  # what engines send
            return [event + b"\n\n" for event in chunk[:-2].split(b"\n\n")]
        self._tail += chunk
        events: list[bytes] = []
        start, position = 0, max(0, self._scanned - _LONGEST_END)
        while (end := _EVENT_END.search(self._tail, max(start, position))) is not None:
            events.append(bytes(self._tail[start : end.end()]))
            start = position = end.end()
        if start:
            del self._tail[:start]
        self._scanned = len(self._tail)
        return events

    def rest(self) -> bytes:
        """What has come of an event that is not complete; with this the splitter is empty."""
        rest = bytes(self._tail)
        self._tail.clear()
        self._scanned = 0
        return rest


def data_of(event: bytes) -> bytes | None:
    """The data of an event: its ``data`` lines joined by newlines; ``None`` for comments and the like.

    >>> data_of(b"event: x\\r\\ndata:{\\r\\ndata: }\\r\\n\\r\\n")
    b'{\\n}'
    """
    lines = [
        line[6:] if line[5:6] == b" " else line[5:]
        for line in _LINE_END.split(event)
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
