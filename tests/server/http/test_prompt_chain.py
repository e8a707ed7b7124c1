"""Bodies as chains of hashes: what is the same begins the same, whatever it is written like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.core.prefix import Chain
from thunder_server.prompt_chain import PIECE_CHARS, prompt_chain

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(*messages: Any, **more: Any) -> Chain:
    chain = prompt_chain(CHAT, {"model": "m", "messages": list(messages), **more})
    assert chain is not None
    return chain


def common(one: Chain, other: Chain) -> int:
    return one.reach(set(other.keys))


MESSAGES = st.one_of(
    st.builds(user, st.text(max_size=10)),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "tool_call_id": st.text(max_size=3), "content": st.text(max_size=5)}
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": st.none(),
            "tool_calls": st.lists(st.text(max_size=3), max_size=2),
        }
    ),
    st.text(max_size=5).map(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}),
)


@given(
    st.lists(MESSAGES, min_size=1, max_size=6), st.lists(MESSAGES, max_size=4), st.lists(MESSAGES, max_size=4)
)
def test_prompts_share_exactly_the_messages_that_they_share(begin, one, other):
    a, b = chat(*begin, *one), chat(*begin, *other)
    same = 0
    for mine, others in zip(begin + one, begin + other, strict=False):
        if mine != others:
            break
        same += 1
    assert common(a, b) == common(b, a) == same
    assert list(a.ends) == sorted(a.ends)
    assert len(set(a.keys)) == len(a) == len(a.ends)


def test_how_it_is_written_does_not_matter():
    body = {"model": "m", "messages": [{"role": "tool", "tool_call_id": "1", "content": "ü"}]}
    spelled = json.loads(json.dumps(body, indent=3))
    turned = {"messages": [dict(reversed(body["messages"][0].items()))], "model": "m"}
    assert chat(*body["messages"]).keys == chat(*spelled["messages"]).keys == chat(*turned["messages"]).keys


@pytest.mark.parametrize(
    "more",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"cache_salt": "s"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
    ],
)
def test_what_shapes_the_prompt_tells_all_of_it_apart(more):
    assert common(chat(user("a"), **more), chat(user("a"))) == 0


@pytest.mark.parametrize("more", [{"temperature": 0.5}, {"max_tokens": 7}, {"stream": True}, {"user": "u"}])
def test_what_does_not_shape_the_prompt_changes_nothing(more):
    assert chat(user("a"), **more).keys == chat(user("a")).keys


def test_tools_are_the_first_piece():
    plain, tools = chat(user("a")), chat(user("a"), tools=[{"name": "search"}])
    assert (len(plain), len(tools)) == (1, 2)
    assert tools.ends == (10, 11)


def test_long_messages_are_compared_in_pieces():
    text = "x" * (3 * PIECE_CHARS)
    assert common(chat(user(text + "one")), chat(user(text + "two"))) == 3
    assert chat(user(text)).ends == (PIECE_CHARS, 2 * PIECE_CHARS, 3 * PIECE_CHARS)
    tool = {"role": "tool", "tool_call_id": "1"}
    one, two = (chat({**tool, "content": text + end}) for end in ("one", "two"))
    assert common(one, two) == 3


def test_the_border_between_messages_is_part_of_them():
    assert common(chat(user("ab"), user("c")), chat(user("a"), user("bc"))) == 0


def test_images_have_no_length_that_would_tell_their_tokens():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    chain = chat({"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]})
    assert chain.ends == (13,)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (TEXT, {"prompt": "text"}),
        (TEXT, {"prompt": ["text"]}),
        ("/v1/responses", {"input": "text"}),
        ("/v1/responses", {"input": [user("text")], "instructions": "Be kind."}),
        ("/v1/messages", {"messages": [user("text")], "system": "Be kind."}),
    ],
)
def test_every_api_has_its_prompts(path, fields):
    chain = prompt_chain(path, fields)
    assert chain is not None
    assert chain.ends[-1] >= 4


def test_prompts_may_come_as_token_ids():
    ids = list(range(600))
    one = prompt_chain(TEXT, {"prompt": ids})
    two = prompt_chain(TEXT, {"prompt": [[*ids[:512], 7, 7]]})
    assert common(one, two) == 2
    assert one.ends == (1024, 2048, 2400)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": []},
        {"messages": "text"},
        {"prompt": ""},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": 7},
        {"input": ""},
    ],
)
def test_bodies_without_one_prompt_have_no_chain(fields):
    assert prompt_chain(TEXT, fields) is None


@pytest.mark.parametrize("ids", [[1, -1], [1, "a"], [1, 1 << 70], [1, True]])
def test_ids_that_are_none_are_left_to_the_engine(ids):
    assert len(prompt_chain(TEXT, {"prompt": ids}) or ()) == 0


def test_nothing_that_a_client_sends_is_too_odd():
    assert (
        len(
            chat(
                None,
                7,
                {},
                {"content": {}},
                {"content": "\ud800"},
                {"content": ""},
                {"role": 1, "content": "x"},
            )
        )
        == 7
    )
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert prompt_chain(CHAT, {"messages": [deep]}) is None
