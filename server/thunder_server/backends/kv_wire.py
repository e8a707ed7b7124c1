"""What vLLM (and SGLang, which took its format over) says of its prefix cache, as it comes over ZMQ.

A message is three frames: topic, sequence number (8 bytes, big-endian), and a msgpack batch
``[time, events, data_parallel_rank]``. An event is a map with its ``type``, in older versions an array that
begins with it. Fields are added at every other release, so only those that are needed are looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

END_OF_REPLAY: Final = b"\xff" * 8
"""The sequence number (-1) after the last message that is told again."""

_STORED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
)
_STORED_LATER: Final = ("extra_keys", "group_idx")
_REMOVED: Final = ("block_hashes", "medium", "group_idx")
_ON_THE_GPU: Final = (None, "GPU", "gpu")


class Unreadable(ValueError):
    """This is no batch of KV events."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks in a row, after block ``parent``; ``tokens`` are theirs, ``block_size`` each."""

    hashes: Sequence[Hashable]
    parent: Hashable | None
    tokens: Sequence[int]
    block_size: int
    extras: Sequence[Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks."""


KvEvent = Stored | Removed | Cleared


def read_batch(payload: bytes) -> list[KvEvent]:
    """The events of a batch that concern the GPU's prefix cache, in order. Raises `Unreadable`.

    >>> read_batch(msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}], 0]))
    [Cleared()]
    """
    try:
        batch = msgspec.msgpack.decode(payload)
        events = [_event(event) for event in batch[1]]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as wrong:
        raise Unreadable(f"this is no batch of KV events: {wrong!r}") from wrong
    return [event for event in events if event is not None]


def _event(event: Any) -> KvEvent | None:
    if isinstance(event, Mapping):
        kind, fields = event["type"], event
    else:
        kind, *values = event
        names = (*_STORED, *_STORED_LATER) if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, values, strict=False))
    match kind:
        case "AllBlocksCleared":
            return Cleared()
        case "BlockStored" | "BlockRemoved" if (
            # Of a model with several kinds of layers one group tells as much as all; what was off-loaded is
            # no longer where calls would find it without waiting.
            fields.get("medium") not in _ON_THE_GPU
            or fields.get("group_idx") not in (None, 0)
            or fields.get("locality") == "REMOTE"
        ):
            return None
        case "BlockRemoved":
            return Removed(tuple(fields["block_hashes"]))
        case "BlockStored":
            return _stored(fields)
        case _:
            return None  # of a version to come


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes, tokens, size = tuple(fields["block_hashes"]), fields["token_ids"], fields["block_size"]
    if type(size) is not int or size < 1 or len(tokens) != size * len(hashes):
        raise ValueError(f"{len(hashes)} blocks of {size} tokens cannot have {len(tokens)}")
    extras = fields.get("extra_keys")
    if extras is None:
        adapter = fields.get("lora_name") or fields.get("lora_id")
        extras = [[adapter]] * len(hashes) if adapter else ()
    return Stored(hashes, fields.get("parent_block_hash"), tokens, size, extras)
