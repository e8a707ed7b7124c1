"""Names of token blocks: the same for the same tokens after the same tokens, whoever holds them.

Engines name blocks by hashes of their own, whose seeds and algorithms differ from one to the next. So blocks
are named here by what they contain: those of a prompt from its tokens, those of an engine from the tokens
that its events carry.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

ROOT: Final = 0
"""What the first block of every prompt comes after."""

Extra = Sequence[Any] | None
"""What else than tokens a block depends on: an adapter, a salt, an image."""


def block_keys(
    tokens: Sequence[int], size: int, *, after: int = ROOT, extras: Sequence[Extra] = ()
) -> array[int]:
    """The keys of the whole blocks of ``tokens``, that come after the block of key ``after``.

    ``extras`` belong to the first blocks; those beyond have none. Raises ValueError for what is no token.

    >>> one = block_keys([1, 2, 3, 4, 5], 2)
    >>> len(one), one[1:] == block_keys([3, 4], 2, after=one[0]), one[1:] == block_keys([3, 4], 2)
    (2, True, False)
    """
    try:
        plain = array("I", tokens).tobytes()
    except (OverflowError, TypeError) as wrong:
        raise ValueError("token ids are whole numbers from 0 to 4294967295") from wrong
    width = size * array("I").itemsize
    keys = array("Q")
    before = after.to_bytes(8)
    for number in range(len(tokens) // size):
        data = before + plain[number * width : (number + 1) * width]
        if number < len(extras) and extras[number]:
            data += json.dumps(extras[number], default=repr).encode()
        before = blake2b(data, digest_size=8).digest()
        keys.append(int.from_bytes(before))
    return keys
