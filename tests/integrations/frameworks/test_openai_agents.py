"""OpenAI Agents SDK, with the real one."""

from pathlib import Path

import pytest

from ..harness import containers
from ..harness.dialogue import Fails, Tool, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, BOTH, ONE, ids

AGENT, LANE = AGENTS / "openai_agents_agent.py", "a"


@pytest.mark.proves("openai-agents", "identity", "acting", "expected duration", "end", "async")
@pytest.mark.parametrize("by", ["", "_by_responses"])
def test_a_run_is_a_program(agent, engine, server, by):
    engine.plays(*BOTH)
    told = agent(f"run{by}")
    checks.is_one_program(told, engine, server, name="finder")


@pytest.mark.proves("openai-agents", "streaming")
@pytest.mark.parametrize("by", ["", "_by_responses"])
def test_a_streamed_run_is_one_until_its_loop_ends(agent, engine, server, by):
    engine.plays(*BOTH)
    told = agent(f"stream{by}")
    checks.is_one_program(told, engine, server, name="finder")


def test_a_synchronous_run(agent, engine, server):
    engine.plays(*BOTH)
    told = agent("sync")
    checks.is_one_program(told, engine, server, name="finder", expected=None)


def test_runs_inside_a_program_take_part_in_it(agent, engine, server):
    engine.plays(*BOTH)
    told = agent("inside")
    assert told["answer"] == "Both found."
    assert server.opened() == ["mine"]
    assert set(ids(engine)) == {"mine"}
    assert server.types("mine", "acting.started") == ["acting.started"] * 4
    assert server.ended("mine")["outcome"] == "success"


@pytest.mark.parametrize("scenario", ["fails", "fails_streaming"])
def test_an_error_ends_the_program_as_one(agent, engine, server, scenario):
    engine.faults(Fails(400))
    told = agent(scenario)
    assert told["answer"] == "BadRequestError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"


def test_a_tool_that_raises_ends_with_its_run(agent, engine, server):
    engine.plays(calls(Tool("stumble")))
    told = agent("fails")
    assert told["answer"] == "UserError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"
    assert [entry["ok"] for entry in server.story(program, "acting.finished")] == [False]


def test_cancelling_drops_the_program(agent, engine, server):
    engine.plays(calls(Tool("lookup", {"key": "long"})))
    told = agent("cancelled")
    assert told["answer"] is True
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


def test_cancelling_a_stream_drops_the_program(agent, engine, server):
    engine.plays(*BOTH)
    agent("cancelled_stream")
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "dropped"


@pytest.mark.proves("openai-agents", "threads")
def test_threads_run_programs_of_their_own(agent, engine, server):
    engine.plays(*ONE)
    told = agent("threads")
    assert told["answer"] == ["Found."] * 3
    assert "main" not in ids(engine)
    checks.each_task_is_one_program(engine, server, 3, 2)


def test_a_bare_thread_in_a_tool_names_nobody(agent, engine, server):
    engine.plays(calls(Tool("wander")), says("Wandered."))
    told = agent("wanders")
    assert told["answer"] == "Wandered."
    (program,) = [opened for opened in server.opened() if opened.startswith("prg_")]
    assert ids(engine) == [program, None, program]


def test_twenty_at_once_are_not_mixed_up(agent, engine, server):
    engine.plays(*ONE)
    told = agent("fleet")
    assert told["answer"] == ["Found."] * 20
    checks.each_task_is_one_program(engine, server, 20, 2)


@pytest.mark.proves("openai-agents", "children")
def test_an_agent_as_a_tool_is_a_child(agent, engine, server):
    engine.plays_by(_boss_and_helper)
    told = agent("child")
    assert told["answer"] == "All done."
    checks.boss_has_a_helper(engine, server)


def test_without_our_as_tool_it_counts_as_its_parent(agent, engine, server):
    engine.plays_by(_boss_and_helper)
    agent("plain_child")
    (boss,) = server.opened()
    assert ids(engine) == [boss] * 4


def test_a_failing_child_ends_in_error_and_its_parent_goes_on(agent, engine, server):
    engine.plays_by(
        lambda seen: (
            (calls(Tool("stumble")),)
            if "help me" in seen.body.decode() and "Delegate" not in seen.body.decode()
            else (calls(Tool("ask_helper", {"input": "help me"})), says("Never mind."))
        )
    )
    told = agent("child")
    assert told["answer"] == "Never mind."
    names = checks.programs_by_name(server)
    assert server.ended(names["helper"])["outcome"] == "error"
    assert server.ended(names["boss"])["outcome"] == "success"


def test_a_handoff_goes_on_in_the_same_program(agent, engine, server):
    engine.plays(calls(Tool("transfer_to_other")), calls(Tool("lookup", {"key": "it"})), says("Found."))
    told = agent("handoff")
    assert told["answer"] == "Found."
    (program,) = server.opened()
    assert ids(engine) == [program] * 3


def test_the_users_own_headers_hooks_and_bodies_stay(agent, engine, server):
    engine.plays(*BOTH)
    told = agent("own_headers")
    assert told["answer"] == "Both found."
    for seen in engine.requests:
        assert [value for name, value in seen.headers if name.lower() == "x-mine"] == ["1"]
        assert [value for name, value in seen.headers if name.lower() == "x-session-id"] == ["my-own"]
        assert seen.json["user"] == "me"
    (program,) = server.opened()
    assert program.startswith("prg_")
    checks.acting_overlapped(server, program, None)


@pytest.mark.proves("openai-agents", "resources")
def test_a_sandbox_is_declared_for_its_run(agent, engine, server):
    engine.plays(calls(Tool("exec_command", {"cmd": "pwd"})), says("Worked."))
    assert agent("sandbox")["answer"] == "Worked."
    (program,) = server.opened()
    kinds = ("resource.declared", "acting.started", "resource.released", "program.terminated")
    assert server.types(program, *kinds) == list(kinds)
    (declared,) = server.story(program, "resource.declared")
    assert declared["kind"] == "directory"
    output = engine.requests[1].json["messages"][-1]["content"]
    assert declared["ref"] in output
    assert not Path(declared["ref"]).exists()


@pytest.mark.docker
def test_so_is_one_in_a_container(agent, engine, server, image):
    engine.plays(calls(Tool("exec_command", {"cmd": "hostname"})), says("Worked."))
    assert agent("docker_sandbox", IMAGE=image)["answer"] == "Worked."
    (program,) = server.opened()
    (declared,) = server.story(program, "resource.declared")
    (released,) = server.story(program, "resource.released")
    assert declared["kind"] == "container"
    assert declared["ref"][:12] in engine.requests[1].json["messages"][-1]["content"]
    assert declared["ref"] == released["ref"]
    assert containers.inspected(declared["ref"]) is None


def test_a_sandbox_of_the_users_own_is_left_to_the_user(agent, engine, server):
    engine.plays(calls(Tool("exec_command", {"cmd": "pwd"})), says("Worked."))
    assert agent("own_sandbox")["answer"] == "Worked."
    assert not [entry for entry in server.events if entry["type"] == "resource.declared"]


def test_nothing_reaches_another_host(agent, engine, server, elsewhere):
    told = agent("elsewhere", ELSEWHERE=elsewhere.url + "/v1")
    assert told["answer"] == "Hello from the engine."
    assert [ours(seen) for seen in elsewhere.requests] == [{}]
    assert engine.requests == []


def test_the_client_alone_says_where_the_server_is(another, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(another(server.v1)("run"), engine, server, name="finder")


def test_with_the_server_away(another, engine, dead_url):
    checks.works_alone(another(engine.url + "/v1", THUNDER_BASE_URL=dead_url, PATIENCE="0.1"), engine)


def test_switched_off(another, engine, server):
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")
    checks.leaves_no_trace(session, engine, server)


def _boss_and_helper(seen):
    if "Delegate." in seen.body.decode():
        return calls(Tool("ask_helper", {"input": "help me"})), says("All done.")
    return ONE
