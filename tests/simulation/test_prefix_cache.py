"""The prefix cache by worked examples of vLLM's rules. A hash is the number of a chain and a depth in it."""

from __future__ import annotations

import pytest

from thunder_server.simulation.prefix_cache import Holding, PrefixCache


def _chain(name: int, length: int) -> list[int]:
    return [name * 100 + depth for depth in range(length)]


def _sequence(cache: PrefixCache, hashes: list[int], *, tail: int = 0) -> Holding:
    """Run a chain as an engine does: hold what is there, compute the rest and ``tail`` blocks not full."""
    holding = cache.hold(cache.find(hashes, len(hashes)))
    assert cache.grow(holding, len(hashes) + tail)
    cache.share(holding, hashes, len(hashes))
    cache.check_invariants()
    return holding


def _take(cache: PrefixCache, blocks: int) -> Holding:
    """Somebody else's blocks, never to be found."""
    holding = Holding()
    assert cache.grow(holding, blocks)
    cache.check_invariants()
    return holding


def _cached(cache: PrefixCache, hashes: list[int]) -> int:
    return cache.find(hashes, len(hashes)).blocks


def _over(cache: PrefixCache, holding: Holding) -> None:
    cache.release(holding)
    cache.check_invariants()


def test_the_tail_of_the_least_recent_sequence_goes_first():
    cache = PrefixCache(4)
    older, newer = _chain(1, 2), _chain(2, 2)
    for holding in (_sequence(cache, older), _sequence(cache, newer)):
        _over(cache, holding)
    _take(cache, 1)
    assert _cached(cache, older) == 1
    _take(cache, 1)
    assert _cached(cache, older) == 0
    assert _cached(cache, newer) == 2


def test_a_prefix_in_use_outlives_its_tail():
    cache = PrefixCache(3)
    chain = _chain(1, 3)
    _over(cache, _sequence(cache, chain))
    _sequence(cache, chain[:2])
    assert cache.free == 1
    _take(cache, 1)
    assert _cached(cache, chain) == 2


def test_using_a_prefix_renews_it():
    cache = PrefixCache(4)
    older, newer = _chain(1, 2), _chain(2, 2)
    for chain in (older, newer, older):
        _over(cache, _sequence(cache, chain))
    _take(cache, 2)
    assert _cached(cache, newer) == 0
    assert _cached(cache, older) == 2


def test_blocks_that_nobody_could_find_are_handed_out_before_any_content_is_lost():
    cache = PrefixCache(4)
    for holding in (_sequence(cache, _chain(1, 2)), _sequence(cache, _chain(2, 1), tail=1)):
        _over(cache, holding)
    _take(cache, 1)
    assert _cached(cache, _chain(1, 2)) == 2
    assert _cached(cache, _chain(2, 1)) == 1


def test_a_shared_prefix_is_held_once_and_lives_as_long_as_its_last_holder():
    cache = PrefixCache(8)
    system = _chain(9, 2)
    first, second = _sequence(cache, system + _chain(1, 2)), _sequence(cache, system + _chain(2, 2))
    assert cache.free == 2
    _over(cache, first)
    assert cache.free == 4
    _take(cache, 4)
    assert _cached(cache, system + _chain(1, 2)) == 2
    _over(cache, second)
    assert _cached(cache, system + _chain(2, 2)) == 4


def test_equal_content_computed_twice_is_kept_once():
    cache = PrefixCache(4)
    chain = _chain(1, 2)
    holdings = []
    for _ in range(2):
        holdings.append(Holding())
        assert cache.grow(holdings[-1], 2)
    for holding in holdings:
        cache.share(holding, list(chain), 2)
        cache.check_invariants()
    assert cache.free == 2
    for holding in holdings:
        _over(cache, holding)
    assert cache.free == 4
    _take(cache, 2)
    assert _cached(cache, chain) == 2


def test_a_turn_that_goes_another_way_divides_the_run_where_it_leaves_it():
    cache = PrefixCache(16)
    long = _chain(1, 8)
    _over(cache, _sequence(cache, long))
    for fork in range(1, 8):
        branch = long[:fork] + _chain(fork + 1, 1)
        assert _cached(cache, branch) == fork
        _over(cache, _sequence(cache, branch))
    assert _cached(cache, long) == 8


def test_too_much_is_refused_and_changes_nothing():
    cache = PrefixCache(3)
    _over(cache, _sequence(cache, _chain(1, 2)))
    holding = _take(cache, 1)
    assert not cache.grow(holding, 4)
    assert (holding.blocks, cache.free, _cached(cache, _chain(1, 2))) == (1, 2, 2)


def test_an_empty_cache_is_refused():
    with pytest.raises(ValueError, match="at least one block"):
        PrefixCache(0)
