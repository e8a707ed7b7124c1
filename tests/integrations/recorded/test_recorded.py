"""A real vLLM's answers, recorded, through our server: not a byte is lost, and clients understand them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from .cassettes import NAMES, recording

AGENTS = Path(__file__).with_name("agents.py")


def call(server, program, asked):
    headers = {"X-Thunder-Program-Id": program}
    return httpx.post(f"{server.v1}/chat/completions", json=asked, headers=headers, trust_env=False)


def test_they_hold_what_they_are_there_for():
    assert len(recording("tool-call").tools) == 1
    assert len(recording("parallel-tool-calls").tools) == 2
    assert recording("parallel-tool-calls").tools == recording("parallel-tool-calls-stream").tools
    assert recording("reasoning").text("reasoning")
    assert recording("reasoning").text("content") == recording("reasoning-stream").text("content")
    assert len(recording("long-stream").events) > 250


@pytest.mark.parametrize("name", NAMES)
def test_bytes_come_out_as_they_went_in(name, engine, server):
    engine.strict = False
    recorded = recording(name)
    engine.faults(recorded.plays)
    answer = call(server, f"bytes-{name}", recorded.asked | {"model": "m"})
    assert answer.content == recorded.body
    tokens = server.program(f"bytes-{name}")["tokens"]
    assert tokens["prompt"] == recorded.usage["prompt_tokens"]
    assert tokens["completion"] == recorded.usage["completion_tokens"]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-stream")])
def test_who_did_not_ask_for_usage_sees_everything_else(name, engine, server):
    engine.strict = False
    recorded = recording(name)
    engine.faults(recorded.plays)
    asked = {**recorded.asked, "model": "m"}
    del asked["stream_options"]
    answer = call(server, f"quiet-{name}", asked)
    *before, usage, done = recorded.body.split(b"\n\n")[:-1]
    assert (b'"choices":[]' in usage, done) == (True, b"data: [DONE]")
    assert answer.content == b"\n\n".join([*before, done, b""])
    assert engine.requests[0].json["stream_options"] == {"include_usage": True}
    assert server.program(f"quiet-{name}")["tokens"]["completion"] == recorded.usage["completion_tokens"]


@pytest.mark.lane("a", "b")
@pytest.mark.parametrize("client", ["openai", "litellm"])
def test_clients_understand_them(through_server, engine, server, client):
    engine.strict = False
    recordings = [recording(name) for name in NAMES]
    engine.faults(*(recorded.plays for recorded in recordings))
    asked = json.dumps([(recorded.name, {**recorded.asked, "model": "m"}) for recorded in recordings])
    understood = through_server.run(AGENTS, client, ASKED=asked).result
    for recorded, message in zip(recordings, understood, strict=True):
        assert message["tools"] == [list(tool) for tool in recorded.tools], recorded.name
        assert message["content"] == recorded.text("content"), recorded.name
        assert message["reasoning"] == recorded.text("reasoning"), recorded.name
        program = f"{client}-{recorded.name}"
        assert server.types(program, "call.arrived", "call.finished") == ["call.arrived", "call.finished"]
        assert server.ended(program)["outcome"] == "success"
