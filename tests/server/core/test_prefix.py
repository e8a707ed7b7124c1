"""Chains, lengths, caches and shared prefixes, each against the plainest model of it that there is."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.core import cached
from thunder_server.core.cached import Belief, Cached
from thunder_server.core.prefix import Chain, Lengths, Prompt
from thunder_server.core.sharing import Sharing

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)


def chain_of(path: tuple[int, ...], piece: int = 10) -> Chain:
    """A chain as its hashes would make it: a key for each prefix, never two for one."""
    keys = tuple(int("1" + "".join(map(str, path[: n + 1]))) for n in range(len(path)))
    return Chain(keys, tuple(piece * (n + 1) for n in range(len(path))))


def prompt_of(path: tuple[int, ...], blocks: bool = False) -> Prompt:
    chain = chain_of(path)
    return Prompt(tokens=10 * len(path) + 5, messages=chain, blocks=chain if blocks else None)


# --- chains and lengths


def test_a_chain_reaches_from_its_beginning_to_the_first_miss():
    chain = chain_of((0, 1, 2))
    assert chain.reach(set()) == 0
    assert chain.reach({chain.keys[1], chain.keys[2]}) == 0
    assert chain.reach({chain.keys[0], chain.keys[2]}) == 1
    assert chain.reach(set(chain.keys)) == len(chain) == 3
    assert chain.reach({chain.keys[2]}, start=2) == 3


def test_what_was_learned_of_one_prompt_measures_another():
    lengths = Lengths()
    lengths.learn(Chain((1, 2), (300, 400)), 100)
    assert lengths.measure(Chain((1, 3), (300, 500)), 200).ends == (75, 200)
    # An image counts characters that say nothing; the tokens before it stay what they were.
    assert lengths.measure(Chain((1, 2, 4), (300, 400, 401)), 1100).ends == (75, 100, 1100)


def test_a_length_that_the_prompt_contradicts_is_not_used():
    lengths = Lengths()
    lengths.learn(Chain((1, 2), (300, 400)), 100)
    assert lengths.measure(Chain((1, 2, 3), (300, 400, 500)), 50).ends == (30, 40, 50)
    assert lengths.measure(Chain((), ()), 50).ends == ()
    lengths.learn(Chain((), ()), 50)


def test_pieces_without_characters_have_no_tokens():
    assert Lengths().measure(Chain((1, 2, 3), (0, 0, 0)), 60).ends == (0, 0, 60)


def test_lengths_longest_unused_are_forgotten():
    lengths = Lengths(limit=2)
    lengths.learn(Chain((1,), (100,)), 50)
    lengths.learn(Chain((2,), (100,)), 10)
    lengths.learn(Chain((1, 3), (100, 200)), 60)
    assert lengths.measure(Chain((1, 9), (100, 200)), 100).ends == (50, 100)
    assert lengths.measure(Chain((2, 9), (100, 200)), 100).ends == (50, 100)  # half, as nothing is known


# --- what is believed of a cache


@given(st.lists(st.tuples(PATHS, st.booleans()), max_size=60), st.sampled_from([15, 40, 75, inf]))
def test_a_belief_is_as_a_plain_list_of_recent_pieces_would_have_it(uses, capacity):
    belief, recent = Belief(), []  # oldest first
    for path, use in uses:
        chain = chain_of(path)
        if use:
            belief.use(chain, capacity)
            for key in reversed(chain.keys):
                if key in recent:
                    recent.remove(key)
                recent.append(key)
            while len(recent) > 1 and 10 * len(recent) > capacity:
                recent.pop(0)
        assert belief.held(chain) == 10 * chain.reach(set(recent))
        assert belief.tokens == 10 * len(recent)
        assert len(belief) == len(recent)


def test_an_answer_is_there_for_the_prompt_that_goes_on_from_it():
    belief = Belief()
    asked = chain_of((0, 1))
    belief.use(asked, inf, answer=7)
    assert belief.tokens == 27
    assert belief.held(asked) == 20
    assert belief.held(chain_of((0, 1, 2))) == 27
    assert belief.held(Chain((*asked.keys, 99), (10, 20, 24))) == 24  # no more than there is
    belief.use(chain_of((0, 1, 2)), inf)
    assert belief.tokens == 30  # by now the answer is a part of it


def test_a_miss_shows_what_else_is_gone():
    belief = Belief()
    for path in ((0,), (1,), (2,)):
        belief.use(chain_of(path), inf)
    last = belief.last_use(chain_of((1, 5)))
    belief.use(chain_of((1, 5)), inf)  # it is computed again
    belief.drop_until(last)
    assert [belief.held(chain_of((n,))) for n in range(3)] == [0, 10, 10]
    assert belief.last_use(chain_of((0,))) == 0
    belief.drop_until(0)
    assert belief.tokens == 30
    belief.clear()
    assert belief.tokens == len(belief) == 0


def test_pieces_are_bounded_whatever_the_capacity(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached, "MOST_PIECES", 3)
    belief = Belief()
    for number in range(10):
        belief.use(chain_of((number % 3, number // 3)), inf)
    assert len(belief) == 3


# --- what an engine says


class Engine:
    """Blocks as an engine keeps them, in the plainest way."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.cache = Cached()

    def check(self, path: tuple[int, ...]) -> None:
        chain = chain_of(path)
        reach = 0
        while reach < len(chain) and chain.keys[reach] in self.held:
            reach += 1
        assert self.cache.held(prompt_of(path, blocks=True)) == 10 * reach


DEEDS = st.sampled_from(["store", "store", "store", "evict", "clear", "lose"])


@given(st.lists(st.tuples(DEEDS, PATHS), max_size=60))
def test_the_index_is_as_a_plain_set_would_have_it(deeds):
    engine = Engine()
    cache = engine.cache
    cache.cleared(exact=True)
    for deed, path in deeds:
        keys = chain_of(path).keys
        version = cache.version
        match deed:
            case "store":
                cache.stored(keys)
                engine.held |= set(keys)
            case "evict":
                cache.evicted(keys[-1:])
                engine.held -= set(keys[-1:])
            case "clear":
                cache.cleared(exact=True)
                engine.held.clear()
            case "lose":
                cache.lost_sight()
                engine.held.clear()
                assert not cache.exact
                cache.exact = True
        assert cache.version > version
        engine.check(path)


def test_an_engine_that_tells_all_is_believed_against_what_it_was_sent():
    cache = Cached()
    prompt = prompt_of((0, 1), blocks=True)
    cache.answered(prompt, inf, 0)
    assert cache.held(prompt) == 20  # nothing better is known
    cache.cleared(exact=True)
    cache.answered(prompt, inf, 0)
    assert cache.held(prompt) == 0
    assert cache.held(prompt_of((0, 1))) == 20  # of this one its tokens are not known
    cache.stored(prompt.blocks.keys[:1])
    assert cache.held(prompt) == 10
    cache.lost_sight()
    assert cache.held(prompt) == 20


def test_an_engine_that_tells_some_of_it_may_hold_more():
    cache = Cached()
    prompt = prompt_of((0, 1, 2), blocks=True)
    cache.answered(prompt_of((0,)), inf, 0)
    assert cache.held(prompt) == 10
    cache.stored(prompt.blocks.keys[:2])
    assert cache.held(prompt) == 20


def test_the_last_token_is_always_computed():
    cache = Cached()
    prompt = Prompt(tokens=20, messages=chain_of((0, 1)))
    cache.answered(prompt, inf, 0)
    assert cache.held(prompt) == 19


def test_a_prompt_of_which_nothing_is_known_is_nowhere():
    cache = Cached()
    prompt = Prompt(tokens=20, messages=Chain((), ()))
    cache.answered(prompt, inf, 0)
    assert cache.held(prompt) == 0
    assert cache.version == 0


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached, "MOST_BLOCKS", 3)
    cache = Cached()
    cache.stored([1, 2, 3])
    cache.stored([4])
    assert cache.blocks == {1, 2, 3}


def test_an_answer_that_was_cached_as_expected_changes_nothing():
    cache = Cached()
    prompt = prompt_of((0, 1))
    cache.answered(prompt, inf, 0)
    version, last_use = cache.version, cache.belief.last_use(prompt.messages)
    cache.reconcile(predicted=1000, cached=950, last_use=last_use)
    assert (cache.version, cache.held(prompt)) == (version, 20)
    cache.reconcile(predicted=1000, cached=0, last_use=last_use)
    assert cache.version > version
    assert cache.held(prompt) == 0


def test_what_a_running_call_computes_is_hit_by_those_that_come_after_it():
    cache = Cached()
    cache.cleared(exact=True)
    prompt = prompt_of((0, 1, 2), blocks=True)
    assert list(cache.sent(prompt_of((0, 1)), inf)) == []  # its blocks are not known
    cache.stored(prompt.blocks.keys[:1])
    first, second = cache.sent(prompt, inf), cache.sent(prompt, inf)
    assert list(first) == list(second) == list(prompt.blocks.keys[1:])
    assert cache.held(prompt) == 30
    cache.stored(prompt.blocks.keys[2:])
    cache.settled(first)
    assert cache.held(prompt) == 30
    cache.settled(second)
    assert cache.held(prompt) == 10  # the one between has not been stored after all
    cache.settled(second)
    assert list(cache.sent(prompt_of((0,), blocks=True), inf)) == []


# --- what programs share


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.none(), PATHS)),
        max_size=60,
    ),
    PATHS,
)
def test_sharing_is_as_counting_it_all_anew_would_have_it(moves, incoming):
    sharing, held = Sharing[int](), {}
    for program, path in moves:
        if path is None:
            sharing.drop(program)
            held.pop(program, None)
        else:
            sharing.hold(program, chain_of(path))
            held[program] = chain_of(path)
        holders = Counter(key for chain in held.values() for key in chain.keys)
        assert sharing.credit == sum(10 * (count - 1) for count in holders.values())
        for one, chain in held.items():
            assert sharing.of(one) == 10 * sum(holders[key] > 1 for key in chain.keys)
        assert sharing.common(chain_of(incoming)) == 10 * chain_of(incoming).reach(holders)
    assert sharing.of(99) == 0


def test_holding_the_same_again_changes_nothing():
    sharing = Sharing[str]()
    chain = chain_of((0, 1))
    sharing.hold("a", chain)
    sharing.hold("a", chain)
    sharing.hold("b", chain_of((0, 1, 2)))
    assert sharing.credit == 20
