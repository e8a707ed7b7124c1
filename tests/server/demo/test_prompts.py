"""Prompts have the sizes that scripts want, and share with the one before what scripts say they share."""

from __future__ import annotations

from typing import Any

import pytest

from thunder_server.demo.prompts import Conversation, Filler, Sizes
from thunder_server.emulate import tokens

FILLER = Filler()
SIZES = Sizes(per_word=1.0, per_message=5.0)


def conversation(tag: str = "salt prg_1") -> Conversation:
    chat = Conversation(FILLER, SIZES, tag)
    chat.begin(FILLER.text("salt model", 2000), 2000, 10_000)
    return chat


def encoded(chat: Conversation) -> bytes:
    payload: list[dict[str, Any]] = [*chat.payload()]
    return tokens.encode_chat(payload)


def common(one: bytes, other: bytes) -> int:
    """Leading tokens that two prompts share."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one)) // 4


def test_the_first_prompt_has_the_wanted_size_and_the_familys_beginning() -> None:
    one, other = encoded(conversation()), encoded(conversation("salt prg_2"))
    assert tokens.count(one) == pytest.approx(10_000, rel=0.01)
    assert 2000 <= common(one, other) <= 2020


def test_the_next_prompt_goes_on_from_the_answer() -> None:
    chat = conversation()
    before = encoded(chat)
    chat.known(tokens.count(before))
    reusable = chat.go_on("fix the log", 3, kept_tokens=9_990, prompt_tokens=12_000)
    after = encoded(chat)
    assert tokens.count(after) == pytest.approx(12_000, rel=0.01)
    assert reusable == tokens.count(before)
    assert common(before, after) >= tokens.count(before) - 4  # all but the opening of the answer
    assert chat.payload()[2] == {"role": "assistant", "content": "fix the log"}


def test_a_compacted_context_keeps_only_its_beginning() -> None:
    chat = conversation()
    before = encoded(chat)
    chat.known(tokens.count(before))
    reusable = chat.go_on("gone with the rest", 4, kept_tokens=4_000, prompt_tokens=6_000)
    after = encoded(chat)
    assert reusable == 4_000
    assert tokens.count(after) == pytest.approx(6_000, rel=0.01)
    assert common(before, after) == pytest.approx(4_000, abs=20)
    assert "gone with the rest" not in str(chat.payload())


def test_errors_of_estimation_do_not_add_up() -> None:
    chat = Conversation(FILLER, Sizes(per_word=1.1, per_message=9.0), "tag")
    chat.begin(FILLER.text("s", 100), 100, 1_000)
    for wanted in range(2_000, 20_000, 1_000):
        chat.known(tokens.count(encoded(chat)))
        chat.go_on("the end", 2, kept_tokens=wanted - 1_000, prompt_tokens=wanted)
    assert tokens.count(encoded(chat)) == pytest.approx(19_000, rel=0.01)


def test_long_texts_go_round_the_filler() -> None:
    text = FILLER.text("tag", 600_000)
    assert text.startswith("tag ")
    assert len(text.split(" ")) == 600_001
    assert len(set(text.split(" "))) < 100


def test_there_is_always_something_to_say() -> None:
    chat = conversation()
    chat.go_on("more than wanted", 5_000, kept_tokens=10_000, prompt_tokens=10_000)
    assert chat.payload()[-1]["content"]
