"""What a stream's meter counts, and the one event that it takes out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.apis import SCHEDULED
from thunder_server.metering import StreamMeter
from thunder_server.usage import Usage

from .fake_engine import chunk_of, usage_chunk

CHAT = SCHEDULED["/v1/chat/completions"]
EXACT = Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=64)


def events(*bodies: bytes, end: bytes = b"\n\n", space: bool = True) -> list[bytes]:
    return [(body if space else body.replace(b"data: ", b"data:", 1)) + end for body in bodies]


@given(
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(min_value=1, max_value=40), min_size=1),
)
def test_only_the_unwanted_usage_is_left_out(
    end: bytes, space: bool, withhold: bool, sizes: list[int]
) -> None:
    words = [chunk_of("größe 🎈"), chunk_of('says "usage": {}')]
    before = events(*words, end=end, space=space)
    usage = events(usage_chunk(), end=end, space=space)
    after = events(b"data: [DONE]", end=end, space=space)
    meter = StreamMeter(CHAT, withhold_usage=withhold)
    whole, out, position, step = b"".join(before + usage + after), b"", 0, 0
    while position < len(whole):
        size = sizes[step % len(sizes)]
        out += meter.feed(whole[position : position + size])
        position, step = position + size, step + 1
    out += meter.rest()
    assert out == b"".join(before + ([] if withhold else usage) + after)
    assert (meter.usage, meter.complete, meter.failed, meter.events) == (EXACT, True, False, 3)


def test_usage_beside_a_choice_is_never_left_out() -> None:
    event = b'data: {"choices": [{"delta": {}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    meter = StreamMeter(CHAT, withhold_usage=True)
    assert meter.feed(event) == event
    assert meter.usage == Usage(3, 1, None)


def test_null_usage_stays() -> None:
    event = b'data: {"choices": [], "usage": null}\n\n'
    meter = StreamMeter(CHAT, withhold_usage=True)
    assert meter.feed(event) == event
    assert meter.usage == Usage()


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": "5"}, {"prompt_tokens": -1}, {"prompt_tokens": True}, []]
)
def test_malformed_usage_counts_nothing(usage: object) -> None:
    meter = StreamMeter(CHAT, withhold_usage=False)
    meter.feed(usage_chunk(usage) + b"\n\n")
    assert meter.usage == Usage()


def test_the_last_usage_counts() -> None:
    meter = StreamMeter(CHAT, withhold_usage=False)
    for count in (1, 2, 3):
        meter.feed(usage_chunk({"prompt_tokens": 10, "completion_tokens": count}) + b"\n\n")
    assert meter.usage == Usage(10, 3, None)


def test_an_error_event_is_a_failure() -> None:
    meter = StreamMeter(CHAT, withhold_usage=True)
    assert meter.feed(b'data: {"error": {"message": "x"}}\n\n')
    assert meter.failed


def test_responses_tell_their_usage_in_their_last_event() -> None:
    meter = StreamMeter(SCHEDULED["/v1/responses"], withhold_usage=False)
    first = {"type": "response.created", "response": {"usage": None}}
    last = {
        "type": "response.completed",
        "response": {
            "usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
        },
    }
    for event in (first, last):
        assert not meter.complete
        meter.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    assert (meter.usage, meter.complete) == (Usage(9, 2, 4), True)


def test_messages_tell_their_usage_in_parts() -> None:
    meter = StreamMeter(SCHEDULED["/v1/messages"], withhold_usage=False)
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 1}},
    }
    delta = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 11}}
    for event in (start, delta, {"type": "message_stop"}):
        assert not meter.complete
        meter.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    assert (meter.usage, meter.complete) == (Usage(25, 11, 20), True)
