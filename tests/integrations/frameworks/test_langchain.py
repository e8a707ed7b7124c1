"""LangChain and LangGraph, with the real ones."""

import pytest

from ..harness.dialogue import Fails, Tool, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, BOTH, ONE, ids

AGENT, LANE = AGENTS / "langchain_agent.py", "a"


@pytest.mark.proves("langchain", "identity", "acting", "expected duration", "end")
def test_a_run_is_a_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("run"), engine, server, name="finder")


@pytest.mark.proves("langchain", "async")
def test_an_asynchronous_run(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("run_async"), engine, server, name="finder")


@pytest.mark.proves("langchain", "streaming")
@pytest.mark.parametrize("scenario", ["stream", "stream_async"])
def test_a_streamed_run_leaves_its_consumer_alone(agent, engine, server, scenario):
    engine.plays(*BOTH)
    checks.is_one_program(agent(scenario), engine, server, name="finder")


def test_the_responses_api(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("responses"), engine, server, name="finder")
    assert {seen.path for seen in engine.requests} == {"/v1/responses"}


def test_an_abandoned_stream_drops_the_program(agent, engine, server):
    engine.plays(*BOTH)
    agent("abandoned")
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


def test_runs_inside_a_program_take_part_in_it(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("inside")["answer"] == "Both found."
    assert server.opened() == ["mine"]
    assert ids(engine) == ["mine"] * 4
    assert len(server.types("mine", "acting.started")) == 4
    assert server.ended("mine")["outcome"] == "success"


def test_a_retry_is_the_same_program(agent, engine, server):
    engine.plays(*BOTH)
    engine.faults(Fails(500), Fails(500))
    assert agent("retries")["answer"] == "Both found."
    (program,) = server.opened()
    assert ids(engine) == [program] * 4
    assert server.types(program, "acting.started") == ["acting.started"] * 2


def test_an_error_ends_the_program_as_one(agent, engine, server):
    engine.faults(Fails(400))
    assert agent("fails")["answer"] == "OpenAIInvalidRequestError"
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


@pytest.mark.proves("langchain", "threads")
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


def test_a_thread_that_is_given_the_config_is_in_the_program(agent, engine, server):
    agent("config_in_a_thread")
    (program,) = server.opened()
    assert ids(engine) == [program]
    assert server.program(program)["name"] == "graph"


def test_twenty_at_once_are_not_mixed_up(agent, engine, server):
    engine.plays(*ONE)
    assert agent("fleet")["answer"] == ["Found."] * 20
    checks.each_task_is_one_program(engine, server, 20, 2)


@pytest.mark.proves("langchain", "children")
def test_an_agent_that_a_tool_runs_is_a_child(agent, engine, server):
    engine.plays_by(checks.boss_and_helper)
    assert agent("child")["answer"] == "All done."
    checks.boss_has_a_helper(engine, server)


def test_a_program_that_a_tool_opens_prevails(agent, engine, server):
    engine.plays_by(checks.boss_and_helper)
    assert agent("program_in_a_tool")["answer"] == "All done."
    boss, sub = server.opened()
    assert sub == "sub"
    assert server.program(sub)["parent_id"] == boss
    assert ids(engine) == [boss, sub, sub, sub, boss]
    assert [entry["tool"] for entry in server.story(boss, "acting.started")] == ["ask_helper"]
    assert [entry["tool"] for entry in server.story(sub, "acting.started")] == ["lookup", "lookup"]


def test_an_agent_of_another_framework_is_a_child_too(agent, engine, server):
    engine.plays_by(checks.boss_and_helper)
    assert agent("another_framework")["answer"] == "All done."
    checks.boss_has_a_helper(engine, server)


def test_a_subgraph_goes_on_in_the_same_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("subgraph"), engine, server, name="outer")


@pytest.mark.parametrize("scenario", ["chain", "chain_async"])
def test_a_chain_is_a_program_of_one_call(agent, engine, server, scenario):
    told = agent(scenario)
    assert told["answer"] == "Hello from the engine."
    assert told["after"] is None
    (program,) = server.opened()
    assert ids(engine) == [program]
    assert server.program(program)["name"] == "pipe"
    assert server.ended(program)["outcome"] == "success"


def test_what_calls_no_model_is_no_program(agent, server):
    agent("no_model")
    assert server.opened() == []


def test_a_bare_model_and_tool_belong_to_the_current_program(agent, engine, server):
    agent("bare_model")
    assert ids(engine) == [None, "mine"]
    assert [entry["tool"] for entry in server.story("mine", "acting.started")] == ["lookup"]


def test_the_users_own_headers_and_bodies_stay(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("own_headers")["answer"] == "Both found."
    checks.own_headers_stay(engine)


def test_a_fallback_to_another_host_carries_nothing(agent, engine, server, elsewhere):
    engine.faults(Fails(400))
    assert agent("elsewhere", ELSEWHERE=elsewhere.url + "/v1")["answer"] == "Hello from the engine."
    (program,) = server.opened()
    assert ids(engine) == [program]
    assert [ours(seen) for seen in elsewhere.requests] == [{}]


def test_the_client_alone_says_where_the_server_is(another, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(another(server.v1)("run"), engine, server, name="finder")


def test_with_the_server_away(another, engine, dead_url):
    checks.works_alone(another(engine.url + "/v1", THUNDER_BASE_URL=dead_url, PATIENCE="0.1"), engine)


def test_switched_off(another, engine, server):
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")
    checks.leaves_no_trace(session, engine, server)
