"""What prompts begin with: chains of hashes, and how many tokens each of their links stands for.

A prompt is a **chain**: each key is a hash of everything up to the end of its piece, so that two prompts
which share a key share all before it, and a prefix is compared from the first key to the first miss. There
are two kinds, and their keys never meet:

* *messages*, hashed at the boundary from the request body. Their pieces are messages (long ones in several
  pieces), their ends are characters; what these are in tokens is learned from the engines' usage (`Lengths`).
* *blocks*, the token blocks of an engine that publishes what it caches; their ends are tokens, exactly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass

KNOWN_LENGTHS = 1 << 17
"""How many pieces' lengths are remembered, the latest used ones."""


@dataclass(frozen=True, slots=True)
class Chain:
    """``keys[i]`` stands for the first ``ends[i]`` characters or tokens of a prompt; both rise together.

    Example:
        >>> chain = Chain(keys=(11, 12, 13), ends=(16, 32, 48))
        >>> chain.reach({11, 12, 14})
        2
    """

    keys: Sequence[int]
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)

    def reach(self, held: Container[int], start: int = 0) -> int:
        """How many keys, from ``start`` on to the first miss, are in ``held``; those before count as in."""
        keys = self.keys
        for index in range(start, len(keys)):
            if keys[index] not in held:
                return index
        return len(keys)


@dataclass(slots=True, kw_only=True)
class Prompt:
    """A prompt as the core knows it: its messages with their ends in tokens, and its blocks, if it is known
    what tokens it has.

    ``tokens`` is its whole length, at first as estimated.
    """

    tokens: int
    messages: Chain
    blocks: Chain | None = None


class Lengths:
    """Tokens up to the end of pieces, learned from the prompts that ended there.

    Example:
        >>> lengths = Lengths()
        >>> chain = Chain(keys=(1, 2), ends=(300, 400))  # characters
        >>> lengths.learn(chain, 100)
        >>> lengths.measure(Chain(keys=(1, 2, 3), ends=(300, 400, 420)), 106).ends
        (75, 100, 106)
    """

    def __init__(self, limit: int = KNOWN_LENGTHS) -> None:
        self._limit = limit
        self._known: OrderedDict[int, int] = OrderedDict()

    def measure(self, chain: Chain, total: int) -> Chain:
        """The chain with its ends in tokens: what is known, else in proportion to the characters between, and
        ``total`` at the end."""
        ends: list[int] = []
        size = tokens = 0  # up to the last piece whose length is known
        last = len(chain) - 1
        for index, key in enumerate(chain.keys):
            known = max(total, tokens) if index == last else self._known.get(key)
            if known is None or not tokens <= known <= max(total, tokens):
                continue  # also what was learned of a prompt that this one contradicts
            span = chain.ends[index] - size
            share = (known - tokens) / span if span > 0 else 0.0
            first = len(ends)
            ends += (tokens + round((end - size) * share) for end in chain.ends[first:index])
            ends.append(known)
            size, tokens = chain.ends[index], known
        return Chain(chain.keys, tuple(ends))

    def learn(self, chain: Chain, tokens: int) -> None:
        """An engine says that this chain is ``tokens`` long."""
        measured = self.measure(chain, tokens)
        known = self._known
        for key, end in zip(measured.keys, measured.ends, strict=True):
            if key in known:
                known.move_to_end(key)
            else:
                known[key] = end
        if measured.keys:
            known[measured.keys[-1]] = tokens
        while len(known) > self._limit:
            known.popitem(last=False)
