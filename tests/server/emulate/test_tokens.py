"""Tokens keep prefixes: what a prefix cache and the next turn need of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.emulate import tokens

TEXT = st.text(max_size=80)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXT}),
    min_size=1,
    max_size=5,
)


@given(TEXT.filter(lambda text: "\0" not in text))
def test_text_comes_back(text):
    assert tokens.decode(tokens.encode(text)) == text.encode(errors="replace").decode()


@given(TEXT)
def test_ids_come_back(text):
    encoded = tokens.encode(text)
    assert tokens.from_ids(tokens.to_ids(encoded)) == encoded


@pytest.mark.parametrize("ids", [[-1], [2**32], [0, 2**70]])
def test_what_is_no_token_is_refused(ids):
    with pytest.raises(ValueError, match="token ids"):
        tokens.from_ids(ids)


@given(TEXT, TEXT)
def test_a_longer_text_begins_with_the_tokens_of_a_shorter_one(text, more):
    shorter = text.encode(errors="replace")
    whole = len(shorter) // tokens.TOKEN_BYTES * tokens.TOKEN_BYTES
    assert tokens.encode(text + more)[:whole] == shorter[:whole]


@given(MESSAGES, st.integers(1, 40), st.integers(0, 3))
def test_the_next_turn_begins_with_all_of_this_one_and_its_answer(messages, length, seed):
    prompt = tokens.encode_chat(messages)
    said = tokens.say(tokens.speak(prompt, seed=seed), length, lead=0)
    answered = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "next"}]
    assert tokens.encode_chat(answered).startswith(prompt + said.encode())
    assert tokens.count(said.encode()) == length


@given(TEXT, st.integers(1, 40))
def test_a_completion_goes_on_inside_the_last_token_of_its_prompt(prompt, length):
    raw = prompt.encode(errors="replace")
    lead = -len(raw) % tokens.TOKEN_BYTES
    said = tokens.say(tokens.speak(raw, seed=None), length, lead=lead)
    assert tokens.count(raw + said.encode()) == tokens.count(raw) + length
    assert len(raw + said.encode()) % tokens.TOKEN_BYTES == 0


@given(st.binary(min_size=64, max_size=640), st.binary(max_size=64))
def test_blocks_are_known_by_everything_before_their_end(text, tail):
    size = 4 * tokens.TOKEN_BYTES
    hashes = tokens.block_hashes(text, 4)
    assert len(hashes) == len(text) // size
    assert tokens.block_hashes(text + tail, 4)[: len(hashes)] == hashes
    changed = bytes([text[0] ^ 1]) + text[1:]
    assert not set(tokens.block_hashes(changed, 4)) & set(hashes)
    assert not set(tokens.block_hashes(text, 4, "salt")) & set(hashes)


def test_the_same_prompt_is_answered_the_same_way_as_far_as_it_goes():
    prompt = tokens.encode("why?")
    short, long = (tokens.say(tokens.speak(prompt, seed=None), length, lead=0) for length in (5, 50))
    assert long.startswith(short)
    assert tokens.say(tokens.speak(prompt, seed=1), 50, lead=0) != long


def test_an_image_costs_the_same_whatever_its_size():
    def prompt(data: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return tokens.encode_chat([{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])

    small, large = prompt("AAAA"), prompt("B" * 1_000_000)
    assert len(small) == len(large)
    assert small != large


def test_the_result_of_a_tool_is_text_whatever_holds_it():
    def prompt(result: object) -> bytes:
        return tokens.encode_chat([{"role": "user", "content": [{"type": "tool_result", "content": result}]}])

    assert prompt("done") == prompt([{"type": "text", "text": "done"}])
    assert b"done" in prompt({"odd": "done"})
    assert b'"name":"bash"' in tokens.encode_chat(
        [{"role": "assistant", "content": [{"type": "tool_use", "name": "bash"}]}]
    )


def test_tools_and_tool_calls_are_part_of_the_prompt():
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "bash"}}]}]
    tools = [{"type": "function", "function": {"name": "bash"}}]
    bare = tokens.encode_chat([{"role": "assistant", "content": None}])
    assert len(bare) < len(tokens.encode_chat(messages)) < len(tokens.encode_chat(messages, tools))
