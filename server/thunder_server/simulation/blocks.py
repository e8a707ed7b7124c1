"""The paged prefix cache: fixed-size KV blocks, found again by the hash of everything up to their end.

The rules are vLLM's (v1 block pool). A block is *held* while a sequence refers to it, else *free*; a free
block keeps its content and can be found until it is handed out again. Free blocks are handed out in order:

* blocks without a hash (never filled, nothing to lose), the latest freed first;
* then least recently freed first, and of one sequence its tail before its head, so that a chain is eaten
  from its end and what is left of it is still a usable prefix.

Equal content computed by two sequences at once is kept twice; lookups find the older one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """``blocks`` interchangeable blocks, by number from 0. Every operation is O(1) per block it names.

    >>> pool = BlockPool(4)
    >>> table = pool.allocate(3)
    >>> pool.remember(table[0], hash_=11); pool.remember(table[1], hash_=12)
    >>> pool.release(table)
    >>> pool.free, pool.find([11, 12, 13])
    (4, [0, 1])
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks}")
        self.size = blocks
        self._references = [0] * blocks
        self._hash: list[int | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(
            range(blocks)
        )  # next to be handed out first
        self._cached: dict[int, int] = {}  # hash -> the block found under it
        self._twins: dict[int, list[int]] = {}  # hash -> younger blocks of equal content, oldest first

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    @property
    def references(self) -> int:
        """References over all blocks; for tests."""
        return sum(self._references)

    def find(self, hashes: Sequence[int]) -> list[int]:
        """The blocks under the longest cached prefix of a chain of hashes. Changes nothing."""
        found: list[int] = []
        cached = self._cached
        for hash_ in hashes:
            block = cached.get(hash_)
            if block is None:
                break
            found.append(block)
        return found

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these are free: what holding them takes away from the pool."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these cached blocks."""
        references, free = self._references, self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` blocks with one reference each; what they held is forgotten.

        Callers look at ``free`` first: asking for more is a ``KeyError``.
        """
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._hash[block] is not None:
                self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def remember(self, block: int, hash_: int) -> None:
        """A held block is full: it can be found under this hash from now on."""
        self._hash[block] = hash_
        if hash_ in self._cached:
            self._twins.setdefault(hash_, []).append(block)
        else:
            self._cached[hash_] = block

    def release(self, table: Sequence[int]) -> None:
        """Drop one reference of each block of a sequence, given from head to tail."""
        references, hashes, free = self._references, self._hash, self._free
        for block in reversed(table):
            references[block] -= 1
            if not references[block]:
                free[block] = None
                if hashes[block] is None:
                    free.move_to_end(block, last=False)

    def clear(self) -> None:
        """Forget all content. Held blocks stay held, and cannot be found."""
        self._hash = [None] * self.size
        self._cached.clear()
        self._twins.clear()

    def _forget(self, block: int) -> None:
        hash_ = self._hash[block]
        self._hash[block] = None
        assert hash_ is not None
        twins = self._twins.get(hash_)
        if twins is None:
            del self._cached[hash_]
            return
        if self._cached[hash_] == block:
            self._cached[hash_] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[hash_]

    def check_invariants(self) -> None:
        """Every block is either free or held, and what can be found is what blocks hold."""
        for block, references in enumerate(self._references):
            assert references >= 0, f"block {block} has {references} references"
            assert (references == 0) == (block in self._free), f"block {block}: {references} references"
        under = {block: hash_ for hash_, block in self._cached.items()}
        for hash_, twins in self._twins.items():
            assert twins, f"no twins under {hash_}"
            under.update(dict.fromkeys(twins, hash_))
        assert under == {block: hash_ for block, hash_ in enumerate(self._hash) if hash_ is not None}
