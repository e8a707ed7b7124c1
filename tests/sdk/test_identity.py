"""Which headers and body fields each dialect gets, and where they may go."""

import json

import pytest

import thunder_sdk as thunder
from thunder_sdk._dialects import DIALECTS, Identity, body_of, headers_of
from thunder_sdk.testing import use_sdk

FULL = Identity(id="p", parent_id="q", group="g", priority=2, max_wait=1.5)
BARE = Identity(id="p")


@pytest.mark.parametrize(
    ("dialect", "full", "bare"),
    [
        (
            "thunder",
            {
                "X-Thunder-Program-Id": "p", "X-Session-ID": "p", "X-Thunder-Parent-Id": "q",
                "X-Thunder-Group": "g", "X-Thunder-Priority": "2", "X-Thunder-Max-Wait": "1.5",
            },
            {"X-Thunder-Program-Id": "p", "X-Session-ID": "p"},
        ),
        (
            "dynamo",
            {"X-Dynamo-Session-ID": "p", "X-Dynamo-Parent-Session-ID": "q"},
            {"X-Dynamo-Session-ID": "p"},
        ),
        ("vllm-router", {"X-Session-ID": "p"}, {"X-Session-ID": "p"}),
        ("thunderagent", {"X-Session-ID": "p"}, {"X-Session-ID": "p"}),
        ("smg", {"x-smg-routing-key": "p"}, {"x-smg-routing-key": "p"}),
        (
            "llm-d",
            {"x-session-id": "p", "x-llm-d-inference-fairness-id": "g"},
            {"x-session-id": "p", "x-llm-d-inference-fairness-id": "p"},
        ),
    ],
)  # fmt: skip
def test_headers_per_dialect(dialect, full, bare):
    assert headers_of(FULL, (dialect,)) == full
    assert headers_of(BARE, (dialect,)) == bare


def test_bodies_per_dialect():
    for dialect in ("thunder", "smg", "llm-d"):
        assert body_of(FULL, (dialect,)) == {}
    assert body_of(FULL, ("dynamo",)) == {"nvext": {"agent_hints": {"priority": 2}}}
    assert body_of(BARE, ("dynamo",)) == {}
    assert body_of(BARE, ("thunderagent",)) == {"program_id": "p"}
    context = body_of(FULL, ("vllm-router",))["vllm_xargs"]["agentic_context"]
    assert json.loads(context) == {"program_id": "p", "parent_program_id": "q", "priority": 2}
    assert json.loads(body_of(BARE, ("vllm-router",))["vllm_xargs"]["agentic_context"]) == {"program_id": "p"}


def test_all_at_once():
    headers = headers_of(FULL, tuple(DIALECTS))
    assert len({name.lower() for name in headers}) == len(headers)
    assert set(body_of(FULL, tuple(DIALECTS))) == {"nvext", "vllm_xargs", "program_id"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (540, "540"), (0.25, "0.25"), (123456.789, "123456.789")]
)
def test_max_wait_is_a_plain_number(seconds, text):
    assert headers_of(Identity(id="p", max_wait=seconds), ("thunder",))["X-Thunder-Max-Wait"] == text


def test_a_name_is_never_in_a_header():
    with use_sdk("http://127.0.0.1:9"):
        p = thunder.program("naïve name ✨\r\nX: y")
        assert not [value for value in p.headers().values() if "name" in value]
        assert p.serialize().isascii()


def test_headers_to_a_url_go_where_calls_may_be_seen():
    with use_sdk("http://gpu:8300/pool", tag_hosts=["other"]), thunder.program(program_id="x") as p:
        for url in ("http://gpu:8300", "http://gpu:8300/pool/v1/chat/completions", "https://other/v1"):
            assert p.headers_to(url) == {"X-Thunder-Program-Id": "x", "X-Session-ID": "x"}
        for url in ("http://gpu:8301/v1", "https://gpu:8300/v1", "https://api.openai.com/v1", "", "nonsense"):
            assert p.headers_to(url) == {}
