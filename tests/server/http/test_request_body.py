"""Request bodies: what is read out of them, what is taken out, and that the rest stays byte for byte."""

from __future__ import annotations

import gzip
import json
from typing import Any

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.errors import ApiError
from thunder_server.jsonspans import scan_document, scan_object
from thunder_server.request_body import Body, prompt_chars, read_body

LIMIT = 1 << 20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def read(raw: bytes | str | dict[str, Any], *, usage_option: bool = True, encoding: str = "") -> Body:
    if isinstance(raw, dict):
        raw = json.dumps(raw)
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    return read_body(raw, encoding, usage_option=usage_option, limit=LIMIT)


def test_an_untouched_body_is_the_same_object() -> None:
    body = read(
        '{"model" : "m", "n": 1.0, "big": 123456789012345678901234567890, "e": 1E400, "u": "\\ud83d"}'
    )
    assert body.forward is body.raw
    assert body.model == "m"


def test_what_is_ours_is_cut_out_of_the_text() -> None:
    raw = (
        '{ "a":1.0 , "program_id":"p", "metadata": {"program_id": "q", "k" : 1E5},'
        '"extra_body":{"program_id":null},"z":"\\ud83d é 🎈" }'
    )
    assert read(raw).forward.decode() == '{"a":1.0, "metadata": {"k" : 1E5}, "z":"\\ud83d é 🎈"}'


def test_an_object_that_was_empty_before_stays() -> None:
    assert read({"metadata": {}, "extra_body": {}, "program_id": "p"}).forward == (
        b'{"metadata": {}, "extra_body": {}}'
    )


@pytest.mark.parametrize(
    ("options", "forwarded"),
    [
        ("", '{"stream": true, "stream_options": {"include_usage": true}}'),
        (', "stream_options": null', '{"stream": true, "stream_options": {"include_usage": true}}'),
        (
            ', "stream_options": {"include_usage": false, "x":1.0}',
            '{"stream": true, "stream_options": {"x":1.0, "include_usage": true}}',
        ),
        (
            ', "stream_options": {}, "y": 2',
            '{"stream": true, "stream_options": {"include_usage": true}, "y": 2}',
        ),
    ],
)
def test_usage_is_asked_for(options: str, forwarded: str) -> None:
    body = read('{"stream": true' + options + "}")
    assert body.forward.decode() == forwarded
    assert body.withhold_usage


@pytest.mark.parametrize(
    "raw",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": "yes"}},
        {"stream": True, "stream_options": "all"},
        {"stream": False},
        {"stream": "true"},
        {},
    ],
)
def test_usage_is_not_asked_for(raw: dict[str, Any]) -> None:
    body = read(raw)
    assert body.forward is body.raw
    assert not body.withhold_usage


def test_usage_is_not_asked_for_where_the_api_has_no_such_option() -> None:
    assert not read({"stream": True}, usage_option=False).withhold_usage


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"   ", "object"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b"{", "double quotes"),
        (b'{"a"', "':'"),
        (b'{"a":}', "Expecting value"),
        (b'{"a":1', "','"),
        (b'{"a":1,}', "double quotes"),
        (b'{"a":1} x', "follows"),
        (b"{'a':1}", "double quotes"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":[-Infinity]}', "-Infinity"),
        (b'{"a":"\x00"}', "control character"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b'{"a":' + b"9" * 5000 + b"}", "JSON"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested"),
        (b'{"program_id":"a","program_id":"b"}', "'program_id' is given twice"),
        (b'{"stream":true,"stream":false}', "'stream' is given twice"),
    ],
)
def test_a_malformed_body_is_refused_by_name(raw: bytes, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(raw)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    assert says in refused.value.message


def test_other_members_may_be_given_twice() -> None:
    body = read(b'{"user":"a","user":"b","program_id":"p"}')
    assert body.forward == b'{"user":"a", "user":"b"}'


@pytest.mark.parametrize("encode", [gzip.compress, brotli.compress])
def test_a_compressed_body_is_read_and_passed_undecoded(encode: Any) -> None:
    raw = encode(json.dumps({"model": "m", "program_id": "p", "stream": True}).encode())
    body = read(raw, encoding="gzip" if encode is gzip.compress else "br")
    assert body.forward is raw
    assert (body.model, body.stream, body.withhold_usage, body.fields["program_id"]) == (
        "m",
        True,
        False,
        "p",
    )


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"no gzip", "gzip"),
        (gzip.compress(b"x" * (LIMIT + 1)), "gzip"),
    ],
)
def test_a_body_that_cannot_be_looked_into_is_passed(raw: bytes, encoding: str) -> None:
    body = read(raw, encoding=encoding)
    assert body.forward is raw
    assert (body.encoded, body.model, body.stream) == (True, None, False)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_the_scanner_agrees_with_the_parser(value: dict[str, Any], ascii_only: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    members = scan_document(text)
    assert {member.key: member.value for member in members} == json.loads(text)
    for member in members:
        assert json.loads("{" + text[member.start : member.end] + "}") == {member.key: member.value}
        assert json.loads(text[member.value_start : member.end]) == member.value


@given(st.text())
def test_the_scanner_refuses_what_the_parser_refuses(text: str) -> None:
    for candidate in (text, "{" + text + "}", '{"a":' + text + "}"):
        try:
            expected = json.loads(candidate)
        except ValueError:
            expected = None
        try:
            found = {member.key: member.value for member in scan_document(candidate)}
        except ValueError:
            found = None
        if isinstance(expected, dict) and "NaN" not in candidate and "Infinity" not in candidate:
            assert found == expected
        elif not isinstance(expected, dict):
            assert found is None


@given(
    st.dictionaries(
        st.sampled_from(["a", "metadata", "program_id", "extra_body"]) | st.text(), JSON, max_size=5
    ),
    st.booleans(),
)
def test_forwarding_changes_nothing_else(value: dict[str, Any], stream: bool) -> None:
    value["stream"] = stream
    forwarded = json.loads(read(value).forward)
    expected = {key: inner for key, inner in value.items() if key != "program_id"}
    for name in ("metadata", "extra_body"):
        inner = expected.get(name)
        if isinstance(inner, dict) and "program_id" in inner:
            expected[name] = {key: one for key, one in inner.items() if key != "program_id"}
            if not expected[name]:
                del expected[name]
    if stream and expected.get("stream_options") is None:
        expected["stream_options"] = {"include_usage": True}
    assert forwarded == expected


def test_scanning_an_inner_object_tells_where_it_ends() -> None:
    assert scan_object('x {"a": {}} y', 2)[1] == 11


def test_prompt_chars_count_text_and_leave_out_images() -> None:
    image = "data:image/png;base64," + "A" * 10_000
    fields = {
        "messages": [
            {"role": "system", "content": "12345"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "678"},
                    {"type": "image_url", "image_url": {"url": image}},
                    {"type": "input_image", "image_url": image},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}],
            },
        ],
        "model": "not counted",
    }
    assert prompt_chars(fields) == 5 + 3 + 2
    assert prompt_chars({"prompt": ["ab", "c"]}) == 3
    assert prompt_chars({"prompt": [1, 2, 3]}) == 12
    assert prompt_chars({"input": "four", "instructions": "xx"}) == 6
    assert prompt_chars({"messages": 5, "tools": "x"}) >= 0


@given(JSON)
def test_prompt_chars_of_anything(value: Any) -> None:
    assert prompt_chars({"messages": value, "tools": value, "input": value}) >= 0


@given(st.dictionaries(st.text(), JSON), st.integers(-5, 5), st.sampled_from(["", " ", "\n", "\t \r\n"]))
def test_a_priority_is_added_where_there_is_none(fields: dict[str, Any], priority: int, space: str) -> None:
    body = read(space + json.dumps(fields)[:-1] + space + "}" + space, usage_option=False)
    forward = json.loads(body.forward_with(priority))
    named = json.loads(body.forward)
    if "priority" in fields or not priority:
        assert body.forward_with(priority) is body.forward
    else:
        assert forward == {**named, "priority": priority}


def test_no_priority_is_added_to_an_encoded_body() -> None:
    body = read(gzip.compress(b'{"model": "m"}'), encoding="gzip")
    assert body.forward_with(3) is body.raw
