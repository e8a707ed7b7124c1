"""The block pool against vLLM's rules, and against itself."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from thunder_server.simulation.blocks import BlockPool


def _sequence(pool: BlockPool, *hashes: int, tail: int = 0) -> list[int]:
    """Blocks remembered under these hashes, and ``tail`` blocks that are not full."""
    table = pool.allocate(len(hashes) + tail)
    for block, hash_ in zip(table, hashes, strict=False):
        pool.remember(block, hash_)
    return table


def test_the_tail_of_the_least_recent_sequence_goes_first():
    pool = BlockPool(4)
    older, newer = _sequence(pool, 1, 2), _sequence(pool, 10, 11)
    pool.release(older)
    pool.release(newer)
    pool.allocate(1)
    assert len(pool.find([1, 2])) == 1
    pool.allocate(1)
    assert pool.find([1, 2]) == []
    assert len(pool.find([10, 11])) == 2


def test_a_prefix_in_use_outlives_its_tail():
    pool = BlockPool(3)
    first = _sequence(pool, 1, 2, 3)
    pool.release(first)
    pool.hold(pool.find([1, 2]))
    assert pool.free == 1
    pool.allocate(1)
    assert pool.find([1, 2, 3]) == first[:2]


def test_using_a_prefix_renews_it():
    pool = BlockPool(4)
    older, newer = _sequence(pool, 1, 2), _sequence(pool, 10, 11)
    pool.release(older)
    pool.release(newer)
    pool.hold(older)
    pool.release(older)
    pool.allocate(2)
    assert pool.find([10, 11]) == []
    assert pool.find([1, 2]) == older


def test_blocks_that_nobody_could_find_are_handed_out_before_any_content_is_lost():
    pool = BlockPool(4)
    pool.release(_sequence(pool, 1, 2))
    pool.release(_sequence(pool, 10, tail=1))
    pool.allocate(1)
    assert len(pool.find([1, 2])) == 2
    assert len(pool.find([10])) == 1


def test_of_equal_blocks_the_younger_is_found_when_the_older_is_gone():
    pool = BlockPool(2)
    older, younger = _sequence(pool, 1), _sequence(pool, 1)
    pool.release(older)
    assert pool.find([1]) == older
    pool.allocate(1)
    assert pool.find([1]) == younger
    pool.check_invariants()


def test_a_cleared_pool_keeps_what_is_held_but_finds_nothing():
    pool = BlockPool(3)
    table = _sequence(pool, 1, 2)
    pool.clear()
    assert pool.find([1, 2]) == []
    assert pool.free == 1
    pool.release(table)
    pool.check_invariants()
    assert pool.free == 3


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


class Pool(RuleBasedStateMachine):
    """Random sequences share prefixes of a small set of chains; the pool stays consistent."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.tables: list[list[int]] = []

    @rule(chain=st.integers(0, 2), length=st.integers(1, 4), tail=st.integers(0, 1))
    def start(self, chain: int, length: int, tail: int) -> None:
        hashes = [(chain, depth).__hash__() for depth in range(length)]
        found = self.pool.find(hashes)
        missing = length - len(found) + tail
        if missing + self.pool.count_free(found) > self.pool.free:
            return
        self.pool.hold(found)
        fresh = self.pool.allocate(missing)
        for block, hash_ in zip(fresh, hashes[len(found) :], strict=False):
            self.pool.remember(block, hash_)
        self.tables.append(found + fresh)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        self.pool.check_invariants()
        held = {block for table in self.tables for block in table}
        assert self.pool.free + len(held) == self.pool.size
        assert self.pool.references == sum(map(len, self.tables))


TestPool = Pool.TestCase
