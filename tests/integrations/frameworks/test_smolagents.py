"""smolagents, with the real one."""

import pytest

from ..harness import containers
from ..harness.dialogue import Fails, Tool, Turn, calls, says
from ..harness.engine import ours
from . import checks
from .checks import AGENTS, LEFT, RIGHT, ids

AGENT, LANE = AGENTS / "smolagents_agent.py", "a"


def answers(text: str) -> Turn:
    """How one of its agents ends: by a tool."""
    return calls(Tool("final_answer", {"answer": text}))


def codes(*lines: str) -> Turn:
    return says("Thought.\n```python\n" + "\n".join(lines) + "\n```")


BOTH = (calls(LEFT, RIGHT), answers("Both found."))
ONE = (calls(Tool("lookup", {"key": "it"})), answers("Found."))


@pytest.mark.proves("smolagents", "identity", "acting", "expected duration", "end")
def test_a_run_is_a_program(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("run"), engine, server, name="finder")


@pytest.mark.proves("smolagents", "streaming")
def test_a_streamed_run_leaves_its_consumer_alone(agent, engine, server):
    engine.plays(*BOTH)
    checks.is_one_program(agent("stream"), engine, server, name="finder")


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


def test_an_error_ends_the_program_as_one(agent, engine, server):
    engine.faults(Fails(400))
    assert agent("fails")["answer"] == "AgentGenerationError"
    (program,) = server.opened()
    assert server.ended(program)["outcome"] == "error"


def test_a_tool_that_raises_is_told_to_the_model(agent, engine, server):
    engine.plays_by(
        lambda seen: (
            (answers("Sorry."),)
            if "nothing there" in seen.body.decode()
            else (calls(Tool("lookup", {"key": "broken"})),)
        )
    )
    assert agent("run")["answer"] == "Sorry."
    (program,) = server.opened()
    assert [entry["ok"] for entry in server.story(program, "acting.finished")] == [False]
    assert server.ended(program)["outcome"] == "success"


@pytest.mark.proves("smolagents", "threads")
def test_threads_run_programs_of_their_own(agent, engine, server):
    engine.plays(*ONE)
    assert agent("threads")["answer"] == ["Found."] * 3
    assert "main" not in ids(engine)
    checks.each_task_is_one_program(engine, server, 3, 2)


def test_a_bare_thread_in_a_tool_names_nobody(agent, engine, server):
    engine.plays(calls(Tool("wander")), answers("Wandered."))
    assert agent("wanders")["answer"] == "Wandered."
    (program,) = [opened for opened in server.opened() if opened.startswith("prg_")]
    assert ids(engine) == [program, None, program]


def test_twenty_at_once_are_not_mixed_up(agent, engine, server):
    engine.plays(*ONE)
    assert agent("fleet")["answer"] == ["Found."] * 20
    checks.each_task_is_one_program(engine, server, 20, 2)


@pytest.mark.proves("smolagents", "children")
def test_a_managed_agent_is_a_child(agent, engine, server):
    def pick(seen):
        if "Delegate." in seen.body.decode():
            return calls(Tool("helper", {"task": "help me"})), answers("All done.")
        return ONE

    engine.plays_by(pick)
    assert agent("child")["answer"] == "All done."
    checks.boss_has_a_helper(engine, server, "helper")


def test_code_that_runs_is_acting(agent, engine, server):
    engine.plays(codes("print(lookup(key='it'))"), codes("final_answer('Both found.')"))
    told = agent("code")
    assert told["answer"] == "Both found."
    (program,) = server.opened()
    assert told["seen"] == [program]
    assert ids(engine) == [program] * 2
    acting = server.story(program, "acting.started")
    assert [(entry["tool"], entry["expected_s"]) for entry in acting] == [("python_interpreter", 4.0)] * 2


def test_a_managed_agent_that_code_calls_is_a_child(agent, engine, server):
    def pick(seen):
        if "Delegate." in seen.body.decode():
            return codes("print(helper(task='help me'))"), codes("final_answer('All done.')")
        return ONE

    engine.plays_by(pick)
    assert agent("code_child")["answer"] == "All done."
    names = checks.programs_by_name(server)
    assert ids(engine) == [names["boss"], names["helper"], names["helper"], names["boss"]]
    checks.is_child_of(server, names["helper"], names["boss"])


@pytest.mark.docker
@pytest.mark.proves("smolagents", "resources")
def test_an_executors_container_goes_with_the_program(agent, engine, server, image):
    engine.plays(codes("final_answer('Both found.')"))
    container = agent("sandbox", IMAGE=image)["answer"]
    (declared,) = server.story("mine", "resource.declared")
    assert (declared["kind"], declared["ref"]) == ("container", container)
    server.wait_for(lambda entries: any(entry["type"] == "resource.reclaimed" for entry in entries))
    assert containers.inspected(container) is None


def test_the_users_own_headers_and_bodies_stay(agent, engine, server):
    engine.plays(*BOTH)
    assert agent("own_headers")["answer"] == "Both found."
    checks.own_headers_stay(engine)


def test_nothing_reaches_another_host(agent, engine, server, elsewhere):
    elsewhere.plays(answers("Hi."))
    assert agent("elsewhere", ELSEWHERE=elsewhere.url + "/v1")["answer"] == "Hi."
    assert [ours(seen) for seen in elsewhere.requests] == [{}]
    assert engine.requests == []


def test_a_client_wrapped_by_hand_says_where_the_server_is(another, engine, server):
    engine.plays(*BOTH)
    told = another(server.v1)("wrapped_by_hand")
    checks.is_one_program(told, engine, server, name="finder", expected=None)


def test_with_the_server_away(another, engine, dead_url):
    session = another(engine.url + "/v1", THUNDER_BASE_URL=dead_url, PATIENCE="0.1")
    checks.works_alone(session, engine, script=BOTH)


def test_switched_off(another, engine, server):
    session = another(server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")
    checks.leaves_no_trace(session, engine, server, script=BOTH)
