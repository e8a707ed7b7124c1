"""Content codings, decoded beside the stream."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest

from thunder_server.codecs import Undecodable, decode, decoder

TEXT = b"data: one\n\n" * 500


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


ENCODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("X-GZIP", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    (" br ", brotli.compress),
]


@pytest.mark.parametrize(("name", "encode"), ENCODERS)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_any_split(name: str, encode: Callable[[bytes], bytes], size: int) -> None:
    stream = decoder(name)
    assert stream is not None
    encoded = encode(TEXT)
    pieces = [encoded[start : start + size] for start in range(0, len(encoded), size)]
    assert b"".join(stream.feed(piece) for piece in pieces) == TEXT


def test_gzip_members_may_follow_each_other() -> None:
    assert decode(gzip.compress(b"a") + gzip.compress(b"b"), "gzip", 10) == b"ab"


def test_unknown() -> None:
    assert decoder("zstd") is None
    with pytest.raises(Undecodable):
        decode(b"", "zstd", 10)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br"])
def test_broken(name: str) -> None:
    with pytest.raises(Undecodable):
        decode(b"this is not encoded at all", name, 1000)
    with pytest.raises(Undecodable):
        decode(gzip.compress(TEXT) + b"trailing garbage", "gzip", 1 << 20)


@pytest.mark.parametrize(("name", "encode"), ENCODERS)
def test_more_than_allowed(name: str, encode: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Undecodable):
        decode(encode(b"\0" * 1_000_000), name, 1000)
