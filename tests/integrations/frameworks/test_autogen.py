"""AutoGen's AgentChat, with the real one."""

import pytest

from ..harness.dialogue import Fails, Tool, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, BOTH, ONE, ids

AGENT, LANE = AGENTS / "autogen_agent.py", "a"


@pytest.mark.proves("autogen", "identity", "acting", "expected duration", "end", "async")
def test_a_run_is_a_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("run"), engine, server, name="finder")


@pytest.mark.proves("autogen", "streaming")
def test_a_streamed_run_leaves_its_consumer_alone(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("stream"), engine, server, name="finder")


def test_an_abandoned_stream_drops_the_program(agent, engine, server):
    engine.plays(*BOTH)
    agent("abandoned")
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


def test_a_team_is_one_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("team"), engine, server, name="pair", prompt=False)


def test_runs_inside_a_program_take_part_in_it(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("inside")["answer"] == "Both found."
    assert server.opened() == ["mine"]
    assert ids(engine) == ["mine"] * 4
    assert len(server.types("mine", "acting.started")) == 4
    assert server.ended("mine")["outcome"] == "success"


def test_an_error_ends_the_program_as_one(agent, engine, server):
    engine.faults(Fails(400))
    assert agent("fails")["answer"] == "BadRequestError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"


def test_a_tool_that_raises_is_told_to_the_model(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "broken"})), says("Never mind."))
    agent("run")
    (program,) = server.opened()
    assert [entry["ok"] for entry in server.story(program, "acting.finished")] == [False]
    assert server.ended(program)["outcome"] == "success"


def test_cancelling_drops_the_program(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "long"})))
    assert agent("cancelled")["answer"] is True
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


@pytest.mark.proves("autogen", "threads")
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


@pytest.mark.proves("autogen", "children")
@pytest.mark.parametrize("scenario", ["child", "team_child"])
def test_an_agent_as_a_tool_is_a_child(agent, engine, server, scenario):
    def pick(seen):
        if "Delegate." in seen.body.decode():
            return calls(Tool("helper", {"task": "help me"})), says("All done.")
        return ONE

    engine.plays_by(pick)
    assert agent(scenario)["answer"] == "All done."
    names = checks.programs_by_name(server)
    assert ids(engine) == [names["boss"], names["helper"], names["helper"], names["boss"]]
    checks.is_child_of(server, names["helper"], names["boss"])


def test_code_that_runs_is_acting(agent, engine, server):
    engine.plays(says("```python\nprint(6 * 7)\n```"), says("It is 42."))
    agent("code")
    (program,) = server.opened()
    assert ids(engine) == [program] * 2
    acting = server.story(program, "acting.started")
    assert [(entry["tool"], entry["expected_s"]) for entry in acting] == [("code_executor", 4.0)]
    assert [entry["ok"] for entry in server.story(program, "acting.finished")] == [True]


@pytest.mark.docker
@pytest.mark.proves("autogen", "resources")
def test_an_executors_container_is_declared_while_it_runs(agent, engine, server, image):
    container = agent("sandbox", IMAGE=image)["answer"]
    kinds = ("resource.declared", "call.arrived", "resource.released", "program.terminated")
    assert server.types("mine", *kinds) == list(kinds)
    assert {entry["ref"] for entry in server.story("mine", *kinds[::2])} == {container}


def test_the_users_own_headers_and_bodies_stay(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("own_headers")["answer"] == "Both found."
    checks.own_headers_stay(engine)


def test_nothing_reaches_another_host(agent, engine, server, elsewhere):
    assert agent("elsewhere", ELSEWHERE=elsewhere.url + "/v1")["answer"] == "Hello from the engine."
    assert [ours(seen) for seen in elsewhere.requests] == [{}]
    assert engine.requests == []


def test_with_the_server_away(another, engine, dead_url):
    checks.works_alone(another(engine.url + "/v1", THUNDER_BASE_URL=dead_url, PATIENCE="0.1"), engine)


def test_switched_off(another, engine, server):
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")
    checks.leaves_no_trace(session, engine, server)
