"""Agents that cannot be changed: a base URL, a variable for headers, and ``thunder run`` around them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ...e2e.processes import THUNDER
from ..harness.dialogue import Fails, says
from ..harness.engine import ours

AGENTS = Path(__file__).with_name("agents.py")
CALL = ["call.arrived", "call.finished"]

pytestmark = pytest.mark.lane("a", "b")


def thunder_run(lane, program, scenario, *options, code=0):
    """The agent in its lane, inside a program."""
    done = subprocess.run(
        [*THUNDER, "run", "--id", program, *options, "--", lane.python, AGENTS, scenario],
        env=lane.env(THUNDER=json.dumps(THUNDER)),
        cwd=lane.home,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_base_url_says_it_all(through_server, engine, server):
    engine.plays(says("one"), says("two"))
    run = through_server.run(AGENTS, "conversation", OPENAI_BASE_URL=f"{server.url}/p/by-url/v1")
    assert run.result == ["one", "two"]
    assert [seen.target for seen in engine.requests] == ["/v1/chat/completions"] * 2
    assert all(not ours(seen) for seen in engine.requests)
    assert server.types("by-url", *CALL) == CALL * 2


def test_openais_variable_for_headers(through_server, engine, server):
    through_server.run(AGENTS, "conversation", OPENAI_CUSTOM_HEADERS="X-Thunder-Program-Id: by-header")
    assert len(engine.requests) == 2
    assert server.opened() == ["by-header"]


@pytest.mark.proves("run", "identity", "end")
def test_a_command_is_a_program(through_server, engine, server):
    thunder_run(through_server, "run-whole", "conversation")
    kinds = ("program.opened", *CALL, "program.terminated")
    assert server.types("run-whole", *kinds) == ["program.opened", *CALL * 2, "program.terminated"]
    assert server.ended("run-whole")["outcome"] == "success"


@pytest.mark.proves("run", "end")
def test_a_command_that_fails(through_server, engine, server):
    thunder_run(through_server, "run-fails", "fails", code=1)
    assert server.ended("run-fails")["outcome"] == "error"


@pytest.mark.proves("run", "streaming", "async", "threads")
def test_streams_and_loops_and_threads(through_server, engine, server):
    thunder_run(through_server, "run-ways", "every_way")
    assert len(engine.requests) == 5
    assert {entry["program_id"] for entry in server.events if entry["type"] == "call.arrived"} == {"run-ways"}


@pytest.mark.lane("a")
def test_litellm_by_its_environment(through_server, engine, server):
    thunder_run(through_server, "run-litellm", "litellm_agent")
    assert server.types("run-litellm", *CALL) == CALL * 2


@pytest.mark.lane("a")
def test_retries_are_the_programs_too(through_server, engine, server):
    engine.faults(Fails(500), Fails(429))
    thunder_run(through_server, "run-retries", "conversation")
    assert server.types("run-retries", *CALL) == CALL * 4


@pytest.mark.lane("a")
@pytest.mark.proves(
    "run", "children", partly="`thunder run` inside it, and programs of the SDK with `--keep-urls`"
)
def test_a_command_in_a_command(through_server, engine, server):
    thunder_run(through_server, "run-parent", "with_children")
    assert server.program("run-child")["parent_id"] == "run-parent"
    assert len(server.story("run-child", "call.finished")) == 2
    assert len(server.story("run-parent", "call.finished")) == 2


def test_the_agent_finishes_when_the_server_is_down(server_down, engine):
    done = thunder_run(server_down, "nobody", "conversation")
    assert json.loads(done.stdout) == ["Hello from the engine."] * 2
    assert len(done.stderr.splitlines()) == 1
    assert [ours(seen) for seen in engine.requests] == [{}, {}]


def test_disabled_leaves_no_trace(disabled, engine, server):
    done = thunder_run(disabled, "not-said", "conversation")
    assert done.stderr == ""
    assert [ours(seen) for seen in engine.requests] == [{}, {}]
    assert not server.story("not-said")
