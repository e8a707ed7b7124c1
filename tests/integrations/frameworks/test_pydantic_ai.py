"""pydantic-ai, with the real one."""

import pytest

import thunder_sdk as thunder
from thunder_sdk.testing import use_sdk

from ..harness.dialogue import Fails, Tool, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, BOTH, ONE, ids

AGENT, LANE = AGENTS / "pydantic_ai_agent.py", "a"


@pytest.mark.proves("pydantic-ai", "identity", "acting", "expected duration", "end", "async")
@pytest.mark.parametrize("scenario", ["run", "run_by_responses", "sync", "twice"])
def test_a_run_is_a_program(agent, engine, server, scenario):
    engine.plays(*BOTH)
    checks.is_one_program(agent(scenario), engine, server, name="finder")


@pytest.mark.proves("pydantic-ai", "streaming")
@pytest.mark.parametrize("scenario", ["stream", "stepped"])
def test_a_streamed_run_is_one_until_its_block_ends(agent, engine, server, scenario):
    engine.plays(*BOTH)
    checks.is_one_program(agent(scenario), engine, server, name="finder")


def test_runs_inside_a_program_take_part_in_it(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("inside")["answer"] == "Both found."
    assert server.opened() == ["mine"]
    assert ids(engine) == ["mine"] * 4
    assert len(server.types("mine", "acting.started")) == 4
    assert server.ended("mine")["outcome"] == "success"


def test_an_error_ends_the_program_as_one(agent, engine, server):
    engine.faults(Fails(400))
    assert agent("fails")["answer"] == "ModelRequestRejectedError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"


def test_a_tool_that_raises_ends_with_its_run(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "broken"})))
    assert agent("fails")["answer"] == "LookupError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"
    assert [entry["ok"] for entry in server.story(program, "acting.finished")] == [False]


def test_cancelling_drops_the_program(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "long"})))
    assert agent("cancelled")["answer"] is True
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


@pytest.mark.proves("pydantic-ai", "threads")
def test_threads_run_programs_of_their_own(agent, engine, server):
    engine.plays(*ONE)
    assert agent("threads")["answer"] == ["Found."] * 3
    assert "main" not in ids(engine)
    checks.each_task_is_one_program(engine, server, 3, 2)


def test_a_bare_thread_in_a_tool_names_nobody(agent, engine, server):
    engine.plays(calls(Tool("wander")), says("Wandered."))
    assert agent("wanders")["answer"] == "Wandered."
    (program,) = [opened for opened in server.opened() if opened.startswith("prg_")]
    assert ids(engine) == [program, None, program]


def test_twenty_at_once_are_not_mixed_up(agent, engine, server):
    engine.plays(*ONE)
    assert agent("fleet")["answer"] == ["Found."] * 20
    checks.each_task_is_one_program(engine, server, 20, 2)


@pytest.mark.proves("pydantic-ai", "children")
def test_an_agent_that_a_tool_runs_is_a_child(agent, engine, server):
    engine.plays_by(checks.boss_and_helper)
    assert agent("child")["answer"] == "All done."
    checks.boss_has_a_helper(engine, server)


def test_a_run_in_a_process_that_is_a_program_is_its_child(another, engine, server):
    with use_sdk(server.url):
        whole = thunder.program("whole", program_id="whole")
        with whole.activate():
            context = whole.serialize()
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_PROGRAM_CONTEXT=context)
    engine.plays(*BOTH)
    told = session("run")
    (program,) = set(ids(engine))
    assert told["seen"] == [program] * 2
    assert told["after"] == "whole"
    assert server.program(program)["parent_id"] == "whole"
    assert server.ended(program)["outcome"] == "success"


def test_the_users_own_headers_and_bodies_stay(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("own_headers")["answer"] == "Both found."
    checks.own_headers_stay(engine)


def test_a_fallback_to_another_host_carries_nothing(agent, engine, server, elsewhere):
    engine.faults(Fails(500))
    assert agent("elsewhere", ELSEWHERE=elsewhere.url + "/v1")["answer"] == "Hello from the engine."
    (program,) = server.opened()
    assert ids(engine) == [program]
    assert [ours(seen) for seen in elsewhere.requests] == [{}]


def test_a_client_wrapped_by_hand_says_where_the_server_is(another, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(another(server.v1)("wrapped_by_hand"), engine, server, name="finder")


def test_with_the_server_away(another, engine, dead_url):
    checks.works_alone(another(engine.url + "/v1", THUNDER_BASE_URL=dead_url, PATIENCE="0.1"), engine)


def test_switched_off(another, engine, server):
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")
    checks.leaves_no_trace(session, engine, server)
