"""What control bodies may hold, and what is said about those that do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_server.backend_spec import BackendSpec
from thunder_server.core import events
from thunder_server.errors import ApiError
from thunder_server.jsonbody import parse_object
from thunder_server.payloads import EventsBody, Here, ProgramBody, read, read_event

HERE = Here("machine", "engine")
EVENT = {"program_id": "p", "seq": 1, "at": 1.0}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b"1", "must be a JSON object, not a number"),
        (b'"a"', "not a string"),
        (b"null", "not null"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": 1e999}', "1e999 is out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": [{"\\udfff": 1}]}', "lone surrogate"),
    ],
)
def test_malformed_json(raw: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        parse_object(raw)
    assert raised.value.status == 400


def test_nothing_is_an_empty_object_and_null_is_not_given() -> None:
    assert parse_object(b"") == parse_object(b" \n") == parse_object(b'{"a": null}') == {}
    assert parse_object('{"a": "\\ud83d\\ude00 é"}'.encode()) == {"a": "😀 é"}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"name": "x" * 201}, "name", "at most 200"),
        ({"name": 5}, "name", "should be a string, not 5"),
        ({"parent_id": "a b"}, "parent_id", "is no id: 1 to 200"),
        ({"group": ".."}, "group", "is no id"),
        ({"priority": "5"}, "priority", "should be a whole number, not '5'"),
        ({"priority": True}, "priority", "should be a whole number, not True"),
        ({"priority": 2**40}, "priority", "less than or equal to"),
        ({"priority": 1.5}, "priority", "whole number"),
        ({"tags": "a"}, "tags", "should be an array"),
        ({"tags": [1]}, "tags[0]", "should be a string"),
        ({"metadata": []}, "metadata", "should be an object"),
        ({"expected_context_tokens": -1}, "expected_context_tokens", "greater than or equal to 0"),
        ({"lease_s": -1}, "lease_s", "greater than 0"),
        ({"lease_s": 0}, "lease_s", "greater than 0"),
        ({"lease_s": True}, "lease_s", "should be a number, not True"),
        ({"lease_s": 10**30}, "lease_s", "less than or equal to"),
        ({"max_wait_s": -0.1}, "max_wait_s", "greater than or equal to 0"),
        ({"environment": {}}, "environment.image", "is missing"),
        ({"environment": {"image": ""}}, "environment.image", "at least 1"),
        ({"environment": {"image": "x", "kind": "vm"}}, "environment.kind", "should be 'docker'"),
        ({"environment": {"image": "x", "setup": "pip"}}, "environment.setup", "should be an array"),
        ({"environment": {"image": "x", "env": {"A": 1}}}, "environment.env.A", "should be a string"),
        ({"environment": {"image": "x", "host": ""}}, "environment.host", "at least 1"),
        ({"environment": []}, "environment", "should be an object"),
        ({"age_s": -1}, "age_s", "greater than or equal to 0"),
    ],
)
def test_program_bodies_that_do_not_fit(body: dict, param: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        read(ProgramBody, body)
    assert raised.value.param == param
    assert raised.value.message.startswith(param + ": ")


def test_only_what_was_given_reaches_the_core() -> None:
    body = read(ProgramBody, {"name": "n", "priority": -3, "lease_s": 5, "to_come": {"x": 1}})
    event = body.opened("p", 7.0, 107.0, HERE)
    assert event == events.ProgramOpened(
        at=7.0, program_id="p", fields={"name": "n", "priority": -3, "lease_s": 5.0}
    )


def test_an_environment_is_wanted_where_it_says_or_here() -> None:
    spec = {"image": "python:3.12", "setup": ["pip install x"], "limits": {"cpus": 2}}
    here = read(ProgramBody, {"environment": spec}).opened("p", 7.0, 107.0, HERE)
    assert here.environment == events.EnvironmentWanted(
        image="python:3.12", host="engine", spec={"kind": "docker", **spec}
    )
    assert here.fields == {}
    there = read(ProgramBody, {"environment": {**spec, "host": "box"}}).opened("p", 7.0, 107.0, HERE)
    assert there.environment is not None
    assert (there.environment.host, there.environment.spec) == ("box", here.environment.spec)


@pytest.mark.parametrize(
    ("sent_at", "age_s"),
    [(None, 2.0), (106.5, 2.5), (50.0, 2.0), (108.0, 2.0)],  # the way counts where the clocks agree
)
def test_how_old_a_program_is(sent_at: float | None, age_s: float) -> None:
    body = read(ProgramBody, {"age_s": 2.0, **({} if sent_at is None else {"sent_at": sent_at})})
    assert body.opened("p", 7.0, 107.0, HERE).age_s == pytest.approx(age_s)


@pytest.mark.parametrize(
    ("kind", "host"), [("container", "engine"), ("environment", "engine"), ("process", "machine")]
)
def test_resources_are_here_unless_they_say_so(kind: str, host: str) -> None:
    declared = read_event({**EVENT, "type": "resource.declared", "kind": kind, "ref": "r"}, 0.0, "e", HERE)
    assert isinstance(declared, events.ResourceDeclared)
    assert declared.host == host


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "an event must be an object, not a number"),
        ({}, "type: is missing"),
        ({"type": None}, "type: is missing"),
        ({"type": "acting.began"}, "type: 'acting.began' is no event type; there are acting.started"),
        ({"type": ["heartbeat"]}, "type:"),
        ({"type": "heartbeat"}, "program_id: is missing"),
        ({**EVENT, "type": "heartbeat", "program_id": "a/b"}, "program_id: 'a/b' is no id"),
        ({**EVENT, "type": "heartbeat", "seq": -1}, "seq: should be greater than or equal to 0"),
        ({**EVENT, "type": "heartbeat", "seq": "1"}, "seq: should be a whole number"),
        ({**EVENT, "type": "heartbeat", "seq": 10**400}, "seq: "),
        ({**EVENT, "type": "heartbeat", "at": "now"}, "at: should be a number"),
        ({**EVENT, "type": "acting.started", "call_id": "c"}, "tool: is missing"),
        ({**EVENT, "type": "acting.started", "call_id": "", "tool": "t"}, "call_id: '' is no id"),
        ({**EVENT, "type": "acting.started", "call_id": "c", "tool": "t", "expected_s": -1}, "expected_s: "),
        ({**EVENT, "type": "acting.finished", "call_id": "c", "ok": "yes"}, "ok: should be true or false"),
        ({**EVENT, "type": "resource.declared", "kind": "planet", "ref": "r"}, "kind: 'planet' is no kind"),
        ({**EVENT, "type": "resource.declared", "kind": "port", "ref": ""}, "ref: "),
        ({**EVENT, "type": "resource.declared", "kind": "directory", "ref": "/tmp/a\0b"}, "ref: "),
        ({**EVENT, "type": "resource.released", "kind": "port", "ref": 8000}, "ref: should be a string"),
    ],
)
def test_events_that_do_not_fit(value: object, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_event(value, 0.0, "e", HERE)
    assert message in raised.value.message


def test_events_that_fit() -> None:
    common = {"at": 9.0, "program_id": "p", "emitter": "e", "seq": 1, "client_at": 1.0}
    assert [
        read_event({**EVENT, **fields}, 9.0, "e", HERE)
        for fields in (
            {"type": "acting.started", "call_id": "c", "tool": "bash", "expected_s": 2, "to_come": 1},
            {"type": "acting.started", "call_id": "c", "tool": "bash", "expected_s": None},
            {"type": "acting.finished", "call_id": "c", "ok": False},
            {"type": "heartbeat"},
            {"type": "resource.declared", "kind": "container", "ref": "r", "keep": True},
            {"type": "resource.released", "kind": "container", "ref": "r", "host": "h"},
        )
    ] == [
        events.ActingStarted(**common, call_id="c", tool="bash", expected_s=2.0),
        events.ActingStarted(**common, call_id="c", tool="bash"),
        events.ActingFinished(**common, call_id="c", ok=False),
        events.HeartbeatReceived(**common),
        events.ResourceDeclared(**common, kind="container", ref="r", host="engine", keep=True),
        events.ResourceReleased(**common, kind="container", ref="r", host="h"),
    ]


def test_a_backend_by_post_is_as_strict() -> None:
    assert read(BackendSpec, {"url": "http://a:1/v1", "weight": 2}).weight == 2.0
    for body, param in (
        ({}, "url"),
        ({"url": 5}, "url"),
        ({"url": "a:1"}, "url"),
        ({"url": "http://a", "engine": "x"}, "engine"),
        ({"url": "http://a", "engine": 5}, "engine"),
        ({"url": "http://a", "weight": "2"}, "weight"),
        ({"url": "http://a", "weight": 0}, "weight"),
        ({"url": "http://a", "capacity_tokens": True}, "capacity_tokens"),
        ({"url": "http://a", "api_key": 5}, "api_key"),
        ({"url": "http://a", "api_key": "a\nb"}, "api_key"),
    ):
        with pytest.raises(ApiError) as raised:
            read(BackendSpec, body)
        assert raised.value.param == param


TEXT = st.text("a.:/é\0", max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "type",
        "program_id",
        "seq",
        "at",
        "call_id",
        "tool",
        "ok",
        "kind",
        "ref",
        "host",
        "keep",
        "expected_s",
        "events",
        "emitter",
        "name",
        "parent_id",
        "group",
        "priority",
        "tags",
        "metadata",
        "lease_s",
        "max_wait_s",
    ]
)
TYPES = st.sampled_from(["acting.started", "acting.finished", "heartbeat", "resource.declared"])


@given(st.dictionaries(NAMES, JSON, max_size=8), st.none() | TYPES)
def test_whatever_comes_is_taken_or_explained(body: dict, kind: str | None) -> None:
    for reader in (
        lambda: read_event({**body, "type": kind} if kind else body, 0.0, "e", HERE),
        lambda: read(ProgramBody, body),
        lambda: read(EventsBody, body),
    ):
        try:
            reader()
        except ApiError as refused:
            assert refused.status == 400  # noqa: PT017
