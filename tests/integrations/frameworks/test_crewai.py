"""CrewAI, with the real one."""

import pytest

from ..harness.dialogue import Fails, Tool, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, BOTH, ONE, ids

AGENT, LANE = AGENTS / "crewai_agent.py", "crewai"


@pytest.mark.proves("crewai", "identity", "acting", "expected duration", "end")
def test_a_run_is_a_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("run"), engine, server, name="finders")


@pytest.mark.proves("crewai", "async")
@pytest.mark.parametrize("scenario", ["run_async", "run_in_a_thread"])
def test_an_asynchronous_run(agent, engine, server, scenario):
    engine.plays(*BOTH)
    checks.is_one_program(agent(scenario), engine, server, name="finders")


@pytest.mark.proves("crewai", "streaming")
def test_a_streamed_run_leaves_its_consumer_alone(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("stream"), engine, server, name="finders")


def test_runs_inside_a_program_take_part_in_it(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("inside")["answer"] == "Both found."
    assert server.opened() == ["mine"]
    assert ids(engine) == ["mine"] * 4
    assert len(server.types("mine", "acting.started")) == 4
    assert server.ended("mine")["outcome"] == "success"


def test_an_error_ends_the_program_as_one(agent, engine, server):
    engine.faults(*[Fails(400)] * 5)
    agent("fails")
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"


def test_a_tool_that_raises_is_told_to_the_model(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "broken"})), says("Never mind."))
    assert agent("run")["answer"] == "Never mind."
    (program,) = server.opened()
    assert len(server.types(program, "acting.started")) == len(server.types(program, "acting.finished")) == 1
    assert server.ended(program)["outcome"] == "success"


def test_cancelling_drops_the_program(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "long"})))
    assert agent("cancelled")["answer"] is True
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


@pytest.mark.proves("crewai", "threads")
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


def test_a_kickoff_for_each_is_a_program_each(agent, engine, server):
    engine.plays(*ONE)
    assert agent("each")["answer"] == ["Found."] * 2
    checks.each_task_is_one_program(engine, server, 2, 2)


def test_the_tasks_of_a_crew_are_one_program(agent, engine, server):
    engine.plays(says("Done."))
    assert agent("two_tasks")["answer"] == "Done."
    (program,) = server.opened()
    assert ids(engine) == [program] * 2


@pytest.mark.proves("crewai", "children")
def test_what_is_delegated_is_a_child(agent, engine, server):
    tool = Tool("delegate_work_to_coworker", {"task": "help me", "context": "-", "coworker": "helper"})
    engine.plays_by(
        lambda seen: ONE if "You are helper" in seen.body.decode() else (calls(tool), says("All done."))
    )
    assert agent("child")["answer"] == "All done."
    checks.boss_has_a_helper(engine, server, "delegate_work_to_coworker")


def test_an_agent_on_its_own_is_a_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("lone_agent"), engine, server, name="finder")


def test_a_crew_in_a_flow_is_its_child(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("flow")["answer"] == "Both found."
    names = checks.programs_by_name(server)
    assert ids(engine) == [names["finders"]] * 2
    checks.is_child_of(server, names["finders"], names["Journey"])


def test_the_users_own_headers_bodies_and_interceptor_stay(agent, engine, server):
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
