"""Text to tokens and back, as simply as prefix caching allows.

A token is four bytes of UTF-8, so a text is its own token sequence and nothing is ever looked up: encoding
100,000 tokens copies 400 kB. Texts that share a prefix share its tokens, which is all that a prefix cache
asks of a tokenizer. Control tokens are four bytes that no UTF-8 text contains; the chat template around
messages is ChatML. Generated text consists of whole tokens, so that what a client sends back in its next turn
is what the cache holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

TOKEN_BYTES = 4

_MESSAGE_START = b"\xff\xff\xff\x01"
_MESSAGE_END = b"\xff\xff\xff\x02"
_ATTACHMENT = b"\xff\xff\xff\x03"
_ATTACHMENT_TOKENS = 256
_ATTACHMENTS = frozenset(
    (
        "image",
        "image_url",
        "input_image",
        "input_audio",
        "audio_url",
        "video_url",
        "document",
        "file",
        "input_file",
    )
)

# Generated text: each word is one token together with the space before it.
_WORDS = tuple(
    f" {word}"
    for line in (
        "the and for not but are has was can did new old one two few all any our its now yes out off per via",
        "run fix add log bug job set get put use see ask try cut end fit hit key lot map bit box cap dev doc",
    )
    for word in line.split()
)
_OPENINGS = ("Then", "Next", "Here", "Well", "Okay", "Good", "Look", "Also")
_MEDIAN_OUTPUT_TOKENS = 216  # of recorded coding agents


def encode(text: str) -> bytes:
    """Tokens of a text; the last one is filled up with zeros.

    >>> encode("hello")
    b'hello\\x00\\x00\\x00'
    """
    data = text.encode(errors="replace")
    return data + bytes(-len(data) % TOKEN_BYTES)


def decode(tokens: bytes) -> str:
    return tokens.replace(b"\0", b"").decode(errors="replace")


def to_ids(tokens: bytes) -> list[int]:
    """Tokens as the numbers that ``/tokenize`` shows and a prompt may consist of."""
    return list(struct.unpack(f">{len(tokens) // TOKEN_BYTES}I", tokens))


def from_ids(ids: Sequence[int]) -> bytes:
    """The inverse of ``to_ids``; ``ValueError`` where a number is no token."""
    try:
        return struct.pack(f">{len(ids)}I", *ids)
    except struct.error:
        raise ValueError("token ids are numbers from 0 to 4294967295") from None


def count(tokens: bytes) -> int:
    """How many tokens these bytes are, a last one that is not full included."""
    return -(-len(tokens) // TOKEN_BYTES)


def encode_chat(
    messages: Iterable[Mapping[str, object]], tools: object = None, *, generation_prompt: bool = True
) -> bytes:
    """The chat template: tools first, then every message in its frame, then the opening of the answer."""
    parts: list[bytes] = []
    if tools:
        parts += _MESSAGE_START, encode("system\n# Tools\n"), encode(_json(tools)), _MESSAGE_END, encode("\n")
    for message in messages:
        parts += _MESSAGE_START, encode(f"{message['role']}\n"), _encode_content(message.get("content"))
        if calls := message.get("tool_calls"):
            parts.append(encode(_json(calls)))
        parts += _MESSAGE_END, encode("\n")
    if generation_prompt:
        parts += _MESSAGE_START, encode("assistant\n")
    return b"".join(parts)


def _encode_content(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return encode(content)
    if not isinstance(content, list):
        return encode(_json(content))
    return b"".join(map(_encode_part, content))


def _encode_part(part: object) -> bytes:
    match part:
        case {"text": str(text)}:
            return encode(text)
        case {"type": "tool_result", "content": content}:
            return _encode_content(content)
        case {"type": str(kind)} if kind in _ATTACHMENTS:
            # As many tokens whatever its size, the same for the same content.
            digest = hashlib.blake2b(_json(part).encode(errors="replace"), digest_size=4).digest()
            return _ATTACHMENT + digest.replace(b"\xff", b"\xfe") * _ATTACHMENT_TOKENS
        case _:
            return encode(_json(part))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def speak(prompt: bytes, *, seed: int | None) -> random.Random:
    """Where the answer to a prompt is drawn from: the same for the same prompt and seed, on every machine."""
    key = b"" if seed is None else str(seed).encode()[:64]
    return random.Random(hashlib.blake2b(prompt, digest_size=16, key=key).digest())  # noqa: S311


def natural_length(voice: random.Random) -> int:
    """Tokens that an answer has when nothing cuts it: as recorded coding agents have them."""
    return max(8, round(voice.lognormvariate(math.log(_MEDIAN_OUTPUT_TOKENS), 0.7)))


def say(voice: random.Random, length: int, *, lead: int) -> str:
    """Text of ``length`` tokens, after ``lead`` characters that fill up the prompt's last token."""
    opening = voice.choice(_OPENINGS)
    words = voice.choices(_WORDS, k=length)
    if not lead:
        words[0] = opening
    return "..."[:lead] + "".join(words)


def block_hashes(tokens: bytes, block_size: int, salt: object = None) -> list[int]:
    """One hash for each full block, standing for all tokens up to the block's end.

    Python's own hash is keyed per process, which is as far as these go.
    """
    width = block_size * TOKEN_BYTES
    blocks = struct.iter_unpack(f"{width}s", memoryview(tokens)[: len(tokens) // width * width])
    chain = accumulate(blocks, lambda before, block: hash((before, block)), initial=hash(salt))
    next(chain)
    return list(chain)
