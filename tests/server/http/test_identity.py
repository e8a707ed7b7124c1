"""Who a request says it belongs to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from thunder_server.errors import ApiError
from thunder_server.identity import Identity, read_identity


def identity(
    path: str | None = None, headers: list[tuple[str, str]] | dict[str, str] | None = None, **fields: Any
) -> Identity:
    return read_identity(path, CIMultiDictProxy(CIMultiDict(headers or {})), fields)


# In the order in which they win.
PLACES: list[tuple[str, Any]] = [
    ("path", "path"),
    ("header", ("X-Thunder-Program-Id", "thunder")),
    ("field", {"program_id": "body"}),
    ("field", {"extra_body": {"program_id": "extra"}}),
    ("field", {"metadata": {"program_id": "metadata"}}),
    ("field", {"vllm_xargs": {"agentic_context": json.dumps({"program_id": "agentic"})}}),
    ("header", ("X-Dynamo-Session-ID", "dynamo")),
    ("header", ("x-claude-code-session-id", "claude")),
    ("header", ("x-litellm-session-id", "litellm")),
    ("header", ("X-Session-ID", "session")),
    ("header", ("session-id", "codex")),
    ("header", ("baggage", "a=b, thunder.program.id=baggage;p=1")),
]
NAMES = (
    *("path", "thunder", "body", "extra", "metadata", "agentic"),
    *("dynamo", "claude", "litellm", "session", "codex", "baggage"),
)


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_the_first_place_wins(first: int) -> None:
    path, headers, fields = None, {}, {}
    for kind, said in PLACES[first:]:
        if kind == "path":
            path = said
        elif kind == "header":
            headers[said[0]] = said[1]
        else:
            fields.update(said)
    assert identity(path, headers, **fields).program_id == NAMES[first]


def test_nobody() -> None:
    assert identity() == Identity()


@pytest.mark.parametrize("absent", [None, ""])
def test_null_and_empty_are_absent(absent: Any) -> None:
    fields = {
        "program_id": absent,
        "extra_body": {"program_id": absent},
        "metadata": {"program_id": absent},
        "vllm_xargs": {"agentic_context": {"program_id": absent}},
    }
    headers = {"X-Thunder-Program-Id": "", "X-Dynamo-Session-ID": "", "X-Session-ID": "last"}
    assert identity("", headers, **fields).program_id == "last"


@pytest.mark.parametrize("wrong", ["a b", "é", "..", ".", "x" * 201, "a/b", "\udcff", 5, True, [], {}, 1.5])
def test_what_is_ours_must_be_an_id(wrong: Any) -> None:
    attempts: list[Any] = [
        {"fields": {"program_id": wrong}},
        {"fields": {"extra_body": {"program_id": wrong}}},
    ]
    if isinstance(wrong, str):
        attempts += [{"path": wrong}]
        for name in ("X-Thunder-Program-Id", "X-Thunder-Parent-Id", "X-Thunder-Group"):
            attempts.append({"headers": {name: wrong}})
    for attempt in attempts:
        with pytest.raises(ApiError) as refused:
            identity(attempt.get("path"), attempt.get("headers"), **attempt.get("fields", {}))
        assert (refused.value.status, refused.value.code) == (400, "invalid_request")
        assert refused.value.param
        assert refused.value.body("")  # can be said, whatever was in it


def test_ours_is_checked_also_where_it_does_not_win() -> None:
    with pytest.raises(ApiError):
        identity("fine", {"X-Thunder-Program-Id": "not fine"})


@pytest.mark.parametrize(
    "name", ["X-Dynamo-Session-ID", "X-Session-ID", "session-id", "x-litellm-session-id"]
)
def test_what_is_foreign_is_hashed_where_it_does_not_fit(name: str) -> None:
    for value in ("user 7", "é", "x" * 201, ".."):
        expected = "h_" + hashlib.sha256(value.encode()).hexdigest()[:32]
        assert identity(None, {name: value}).program_id == expected


def test_foreign_values_that_are_no_strings() -> None:
    assert identity(metadata={"program_id": 5}).program_id == "5"
    hashed = identity(metadata={"program_id": {"a": [1]}}).program_id
    assert hashed is not None
    assert hashed.startswith("h_")


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": "x"},
        {"metadata": ["program_id"]},
        {"vllm_xargs": 5},
        {"vllm_xargs": {"agentic_context": "no json"}},
        {"vllm_xargs": {"agentic_context": "[1]"}},
        {"vllm_xargs": {"agentic_context": "[" * 100_000}},
        {"vllm_xargs": {"agentic_context": 7}},
    ],
)
def test_what_holds_no_identity_is_no_identity(fields: dict[str, Any]) -> None:
    assert identity(**fields).program_id is None


def test_baggage_is_percent_decoded() -> None:
    assert identity(None, {"baggage": "thunder.program.id=a%3Ab"}).program_id == "a:b"
    assert identity(None, {"baggage": "thunder.program.id"}).program_id is None
    assert identity(None, [("baggage", "x=y"), ("baggage", " thunder.program.id = p ")]).program_id == "p"


def test_a_header_given_twice() -> None:
    assert identity(None, [("X-Thunder-Program-Id", "a")] * 2).program_id == "a"
    with pytest.raises(ApiError):
        identity(None, [("X-Thunder-Program-Id", "a"), ("X-Thunder-Program-Id", "b")])


def test_everything_else() -> None:
    headers = {
        "X-Thunder-Parent-Id": "parent",
        "X-Thunder-Group": "g",
        "X-Thunder-Priority": "-3",
        "X-Thunder-Max-Wait": "0",
        "X-Thunder-Final": "True",
        "x-stainless-retry-count": "2",
    }
    assert identity("p", headers) == Identity(
        program_id="p", parent_id="parent", group="g", priority=-3, max_wait_s=0.0, final=True, is_retry=True
    )
    assert identity(None, {"X-Dynamo-Session-Final": "true"}).final
    assert identity("p", {"X-Thunder-Parent-Id": "p"}).parent_id is None, "for the sub-agents that inherit it"
    assert identity(None, {"X-Dynamo-Parent-Session-ID": "a b"}).parent_id
    assert identity(None, {"X-Thunder-Retry": "1"}).is_retry
    assert not identity(None, {"x-stainless-retry-count": "0", "X-Thunder-Final": "false"}).is_retry


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Thunder-Priority", value) for value in ("high", "1.5", "1e3", "9" * 30, "nan", "1_0", "١")]
    + [("X-Thunder-Max-Wait", value) for value in ("soon", "-1", "nan", "inf", "1e999", "-0.1", "1_0", "١")]
    + [("X-Thunder-Final", "maybe"), ("X-Thunder-Retry", "2")],
)
def test_garbage_in_our_headers_is_refused(name: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        identity(None, {name: value})
    assert (refused.value.status, refused.value.param) == (400, name)


@given(st.dictionaries(st.sampled_from([said[0] for kind, said in PLACES if kind == "header"]), st.text()))
def test_no_header_makes_it_fail_otherwise(headers: dict[str, str]) -> None:
    try:
        found = identity(None, headers)
    except ApiError:
        assert headers.get("X-Thunder-Program-Id")
    else:
        assert found.program_id is None or 1 <= len(found.program_id) <= 200
