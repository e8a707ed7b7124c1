"""Content codings, decoded on the side: what crosses the proxy keeps the coding it came in."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import brotli


class Undecodable(Exception):
    """Unknown coding, broken data, or more than was allowed."""


class Decoder(Protocol):
    """Pieces of encoded bytes in, what they decode to out. Raises `Undecodable`."""

    def feed(self, data: bytes) -> bytes: ...


class _Zlib:
    """gzip and deflate; deflate comes with and without zlib's header in the wild."""

    def __init__(self, window_bits: int) -> None:
        self._window_bits = window_bits
        self._stream = zlib.decompressobj(window_bits)
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        try:
            decoded = self._stream.decompress(data)
        except zlib.error as broken:
            if self._begun or self._window_bits != zlib.MAX_WBITS:
                raise Undecodable(str(broken)) from broken
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
            self._begun = True
            return self.feed(data)
        self._begun = True
        while self._stream.eof and (rest := self._stream.unused_data):  # gzip members may follow each other
            self._stream = zlib.decompressobj(self._window_bits)
            try:
                decoded += self._stream.decompress(rest)
            except zlib.error as broken:
                raise Undecodable(str(broken)) from broken
        return decoded


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def feed(self, data: bytes) -> bytes:
        try:
            return bytes(self._stream.process(data))
        except brotli.error as broken:
            raise Undecodable(str(broken)) from broken


_DECODERS: Final[Mapping[str, Callable[[], Decoder]]] = {
    "gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "x-gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "deflate": lambda: _Zlib(zlib.MAX_WBITS),
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
