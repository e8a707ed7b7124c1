"""Names of blocks: equal where content is, and only there."""

from __future__ import annotations

from itertools import count

import pytest

from tests.simulation.sessions import session, turn
from thunder_server.simulation.prompts import Prompts


@pytest.fixture
def world():
    return {}, count(1)


def prompts(world, name="s", **kw) -> Prompts:
    return Prompts(session(name, turn(1), **kw), 10, *world)


def common(one: list[int], other: list[int]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def test_a_prompt_goes_on_from_the_one_before_and_its_answer(world):
    p = prompts(world)
    first, second = p.next(turn(100, 20)), p.next(turn(150, 5, shared=100))
    assert (len(first.blocks), len(second.blocks)) == (12, 15)
    assert common(first.blocks, second.blocks) == 12
    assert (first.known_tokens, second.known_tokens) == (0, 120)


def test_the_last_token_of_a_prompt_is_always_computed(world):
    p = prompts(world)
    p.next(turn(100, 20))
    assert p.next(turn(120, 5, shared=100)).known_tokens == 110


def test_a_compacted_prompt_shares_what_it_says_and_nothing_else(world):
    p = prompts(world)
    first, second = p.next(turn(200, 20)), p.next(turn(120, 20, shared=50))
    assert common(first.blocks, second.blocks) == 5
    assert second.known_tokens == 50
    third = p.next(turn(160, 20, shared=120))
    assert common(second.blocks, third.blocks) == 14
    assert not set(first.blocks[5:]) & set(third.blocks)


def test_an_answer_that_did_not_come_back_is_not_shared(world):
    p = prompts(world)
    first, second = p.next(turn(100, 50)), p.next(turn(120, 5, shared=100))
    assert common(first.blocks, second.blocks) == 10


def test_sessions_of_a_model_share_its_system_prompt_only(world):
    one = prompts(world, "a", system=35).next(turn(100))
    two = prompts(world, "b", system=35).next(turn(100))
    other = prompts(world, "c", system=35, model="n").next(turn(100))
    assert common(one.blocks, two.blocks) == 3
    assert not set(one.blocks[3:]) & set(two.blocks)
    assert not set(one.blocks) & set(other.blocks)


def test_the_system_prompt_outlives_a_compaction(world):
    p = prompts(world, system=30)
    first, second = p.next(turn(200)), p.next(turn(100, shared=0))
    assert common(first.blocks, second.blocks) == 3
