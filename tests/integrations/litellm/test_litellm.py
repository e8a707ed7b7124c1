"""LiteLLM, the library, through one global hook."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ..harness.dialogue import Fails, says
from ..harness.engine import ours

AGENTS = Path(__file__).with_name("agents.py")
CALLS = ("call.arrived", "call.finished", "call.cancelled")
ONE_CALL = ["call.arrived", "call.finished"]

pytestmark = pytest.mark.lane("a")


@pytest.mark.lane("a", "b")
@pytest.mark.proves("litellm", "identity", "streaming", "async")
def test_every_way_to_call(through_server, engine, server):
    ids = through_server.run(AGENTS, "every_way").result
    assert len(ids) == 22
    assert [seen.header("x-session-id") for seen in engine.requests] == ids
    assert not [seen for seen in engine.requests if seen.header("x-thunder-program-id")]
    assert {program: server.types(program, *CALLS) for program in ids} == dict.fromkeys(ids, ONE_CALL)
    assert {server.ended(program)["outcome"] for program in ids} == {"success"}


def test_fifty_programs_at_once(through_server, engine, server):
    through_server.run(AGENTS, "fifty_at_once")
    said = [(seen.header("x-session-id"), seen.json["messages"][0]["content"]) for seen in engine.requests]
    assert Counter(said) == {(f"fifty-{number}", f"fifty-{number}"): 3 for number in range(50)}
    for number in range(50):
        assert Counter(server.types(f"fifty-{number}", *CALLS)) == dict.fromkeys(ONE_CALL, 3)


@pytest.mark.proves("litellm", "async", "threads")
def test_loops_come_and_go_and_threads_have_their_own(through_server, engine, server):
    through_server.run(AGENTS, "loops_and_threads")
    programs = [*(f"own-loop-{index}" for index in range(4)), *(f"thread-loop-{index}" for index in range(8))]
    said = {seen.header("x-session-id"): seen.json["messages"][0]["content"] for seen in engine.requests}
    assert said == {program: program for program in programs}
    assert {program: server.types(program, *CALLS) for program in programs} == dict.fromkeys(
        programs, ONE_CALL
    )


def test_one_start_and_one_end_however_a_call_ends(through_server, engine, server):
    engine.plays(says("word " * 200))
    engine.pace = 0.005
    engine.refuses(lambda seen: Fails(400) if seen.json.get("frequency_penalty") else None)
    run = through_server.run(AGENTS, "broken_off")
    assert run.result == ["BadRequestError"] * 2
    for program in ("early-break", "early-break-async", "refused-0", "refused-1"):
        assert server.types(program, *CALLS) == ONE_CALL
    assert server.ended("early-break")["outcome"] == "success"
    assert server.ended("refused-1")["outcome"] == "error"


def test_retries_belong_to_the_program(through_server, engine, server):
    engine.faults(Fails(500), Fails(500))
    through_server.run(AGENTS, "retried")
    assert [seen.header("x-session-id") for seen in engine.requests] == ["retried"] * 3
    assert server.types("retried", *CALLS) == ONE_CALL * 3


def test_a_routers_calls_and_fallbacks_belong_to_the_program(through_server, engine, server):
    engine.faults(Fails(500))
    through_server.run(AGENTS, "routed")
    said = [seen.header("x-session-id") for seen in engine.requests]
    assert said == ["router-sync", "router-sync", "router-async"]
    assert server.types("router-sync", *CALLS) == ONE_CALL * 2


@pytest.mark.proves("litellm", "identity")
def test_nothing_of_ours_reaches_another_host(through_server, engine, server, elsewhere):
    engine.faults(*[Fails(500)] * 3)
    through_server.run(AGENTS, "fallen_back", ELSEWHERE=elsewhere.url + "/v1")
    assert [ours(seen) for seen in elsewhere.requests] == [{}] * 5
    bodies = b"".join(seen.body for seen in elsewhere.requests)
    assert b"fallback" not in bodies
    assert b"thunder" not in bodies
    assert server.types("fallback", "call.arrived") == ["call.arrived"] * 2


@pytest.mark.lane("a", "b")
def test_what_the_user_set_stays(through_server, engine, server):
    run = through_server.run(AGENTS, "own_settings")
    assert (run.result["hooks"], run.result["watched"]) == (1, 2)
    headers = {"x-own": "1", "x-thunder-program-id": "set-by-hand"}
    assert run.result["after"] == [[headers, {"seed": 7}, "mine", []]] * 2
    for seen in engine.requests:
        assert seen.header("x-own") == "1"
        assert seen.header("x-gateway-key") == "secret"
        assert seen.json["seed"] == 7
        assert [name.lower() for name, _ in seen.headers].count("x-session-id") == 1
    assert [entry["group"] for entry in server.story("set-by-hand", "call.arrived")] == ["g", "g"]
    assert not server.story("not-this-one", "call.arrived")


@pytest.mark.proves("litellm", "threads")
def test_threads_never_tag_with_a_wrong_program(through_server, engine, server):
    through_server.run(AGENTS, "worker_threads")
    said = Counter(
        (seen.json["messages"][0]["content"], seen.header("x-session-id")) for seen in engine.requests
    )
    assert said == {("raw", None): 3, ("carried", "main-thread"): 2}


@pytest.mark.proves("litellm", "children", "end")
def test_programs_nest_and_end(through_server, engine, server):
    through_server.run(AGENTS, "family")
    assert [entry["parent_id"] for entry in server.story("child", "call.arrived")] == ["parent"]
    assert (server.program("child")["parent_id"], server.program("child")["group"]) == ("parent", "family")
    assert server.ended("child")["outcome"] == "error"
    assert server.ended("parent")["outcome"] == "success"
    assert len(server.story("parent", "call.finished")) == 2


def test_the_agent_finishes_when_the_server_is_down(server_down, engine):
    run = server_down.run(AGENTS, "simple")
    assert run.result == ["Hello from the engine."] * 2
    assert len(run.warnings) == 1, run.err
    assert [ours(seen) for seen in engine.requests] == [{}, {}]


def test_disabled_leaves_no_trace(disabled, engine, server):
    run = disabled.run(AGENTS, "simple")
    assert run.result == ["Hello from the engine."] * 2
    assert run.warnings == []
    assert [ours(seen) for seen in engine.requests] == [{}, {}]
    assert not server.story("simple")
