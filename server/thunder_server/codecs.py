"""Content codings, decoded on the side: what crosses the proxy keeps the coding it came in."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import brotli

_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class Undecodable(Exception):
    """Unknown coding, broken data, or more than was allowed."""


class Decoder(Protocol):
    """Pieces of encoded bytes in, what they decode to out. Raises `Undecodable`."""

    def feed(self, data: bytes) -> bytes: ...


class _Gzip:
    """Members may follow each other."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_BITS)

    def feed(self, data: bytes) -> bytes:
        try:
            decoded = self._stream.decompress(data)
            while self._stream.eof and (rest := self._stream.unused_data):
                self._stream = zlib.decompressobj(_GZIP_BITS)
                decoded += self._stream.decompress(rest)
        except zlib.error as broken:
            raise Undecodable(str(broken)) from broken
        return decoded


class _Deflate:
    """By the book with zlib's two bytes of header, in the wild also without."""

    def __init__(self) -> None:
        self._start = b""
        self._stream: Any = None

    def feed(self, data: bytes) -> bytes:
        if self._stream is None:
            self._start += data
            if len(self._start) < 2:
                return b""
            data = self._start
            headed = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if headed else -zlib.MAX_WBITS)
        try:
            return bytes(self._stream.decompress(data))
        except zlib.error as broken:
            raise Undecodable(str(broken)) from broken


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def feed(self, data: bytes) -> bytes:
        try:
            return bytes(self._stream.process(data))
        except brotli.error as broken:
            raise Undecodable(str(broken)) from broken


_DECODERS: Final[Mapping[str, Callable[[], Decoder]]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
}
_STEP: Final = 1 << 16


def decoder(encoding: str) -> Decoder | None:
    """A decoder for the value of a Content-Encoding header; ``None`` if that is unknown here."""
    make = _DECODERS.get(encoding.strip().lower())
    return None if make is None else make()


def decode(data: bytes, encoding: str, limit: int) -> bytes:
    """All of ``data``, decoded to at most ``limit`` bytes. Raises `Undecodable`."""
    stream = decoder(encoding)
    if stream is None:
        raise Undecodable(f"unknown content coding {encoding!r}")
    decoded = bytearray()
    for start in range(0, len(data), _STEP):
        decoded += stream.feed(data[start : start + _STEP])
        if len(decoded) > limit:
            raise Undecodable(f"decodes to more than {limit} bytes")
    return bytes(decoded)
