"""Files of JSON lines, plain or gzipped, read so that whatever is wrong is named with its file and line."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, cast

LARGEST_TOKENS = 10**8
LARGEST_SECONDS = 10**12
"""Beyond any prompt and any time that anybody can mean; what is larger would only overflow somewhere else."""


class TraceError(ValueError):
    """A file of traffic cannot be used: ``FILE, line N: what is wrong``."""


@contextmanager
def open_text(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file, gzipped or not, with or without a byte order mark. Raises `TraceError`."""
    where = str(path)

    def lines(source: IO[bytes]) -> Iterator[str]:
        nonlocal where
        for number in count(1):
            where = f"{path}, line {number}"
            if not (line := source.readline()):
                break
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")

    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield lines(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if zipped else raw)
    except (OSError, EOFError, zlib.error) as broken:
        reason = getattr(broken, "strerror", None) or str(broken)
        raise TraceError(f"{where}: cannot be read: {reason}") from broken
    except UnicodeDecodeError as binary:
        raise TraceError(f"{where}: is not UTF-8 text; it must be JSON lines, plain or gzipped") from binary


def parse(text: str, where: str) -> object:
    """The JSON value of a line. Raises `TraceError`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise TraceError(f"{where}: is not JSON: {wrong}") from wrong


def records(lines: Iterable[str], name: str) -> Iterator[Record]:
    """The objects of a file, one a line; blank lines are none."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}, line {number}"
            yield Record(parse(line, where), where)


class Record:
    """One JSON object, whose fields are asked for by type; complaints say where it is.

    A field that is null counts as absent.

    >>> Record({"in": 7}, "t.jsonl, line 1").tokens("in")
    7
    >>> Record({"in": -7}, "t.jsonl, line 1").tokens("in")
    Traceback (most recent call last):
    thunder_server.simulation.jsonlines.TraceError: t.jsonl, line 1: 'in' is negative (-7)
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise TraceError(f"{where}: must be a JSON object, not {type(value).__name__}")
        self.fields = cast("dict[str, object]", value)
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def wrong(self, name: str, what: str) -> TraceError:
        return TraceError(f"{self.where}: {name!r} {what}")

    def _get(self, name: str, default: object = None) -> object:
        value = self.fields.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"must be a non-empty text, not {_short(value)}")
        return value

    def tokens(self, name: str, default: int | None = None) -> int:
        return int(self._in_range(name, self.number(name, default), LARGEST_TOKENS))

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, f"must be a whole number, not {_short(value)}")
        return int(self._in_range(name, value))

    def seconds(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (isinstance(value, float) and math.isnan(value)):
            raise self.wrong(name, f"must be a number of seconds, not {_short(value)}")
        return float(self._in_range(name, cast("float", value), LARGEST_SECONDS))

    def items(self, name: str) -> list[object]:
        value = self._get(name)
        if not isinstance(value, list):
            raise self.wrong(name, f"must be a list, not {type(value).__name__}")
        return value

    def records(self, name: str, noun: str) -> Iterator[Record]:
        for index, item in enumerate(self.items(name)):
            yield Record(item, f"{self.where}, {noun} {index}")

    def _in_range(self, name: str, value: float, largest: int | None = None) -> float:
        if value < 0:
            raise self.wrong(name, f"is negative ({_short(value)})")
        if largest is not None and value > largest:
            raise self.wrong(name, f"is too large ({_short(value)})")
        return value


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python is willing to write
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
