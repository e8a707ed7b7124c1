"""The real mini-swe-agent through a real server, its model scripted."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import thunder_sdk as thunder

from ..harness.containers import inspected
from ..harness.dialogue import Fails, Hangs, Tool, calls
from ..harness.engine import ours

HERE = Path(__file__).parent
AGENTS = HERE / "agents.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"
SCRIPT = (
    calls(Tool("bash", {"command": "echo hello"})),
    calls(Tool("bash", {"command": "echo one"}), Tool("bash", {"command": "echo two"})),
    calls(Tool("bash", {"command": SUBMIT})),
)
SUBMITTED = {"exit_status": "Submitted", "submission": "done\n"}
CALL, ACT = ["call.arrived", "call.finished"], ["acting.started", "acting.finished"]

pytestmark = pytest.mark.lane("a")


@pytest.mark.lane("a", "b")
@pytest.mark.proves("minisweagent", "identity", "acting", "end")
def test_every_way_to_set_it_up(through_server, engine, server):
    engine.plays(*SCRIPT)
    told = through_server.run(AGENTS, "every_way").result
    assert told["configured"] == [SUBMITTED, 3, "openai/m"]
    assert told["composed"] == told["in_my_program"] == [SUBMITTED, SUBMITTED]
    assert told["model_alone"] == told["responses"] == [SUBMITTED]

    assert told["pairs"] == [SUBMITTED, SUBMITTED]
    names = ["configured", "composed", "composed", "model-alone", "current", "given", "responses"]
    names += ["pair-0", "pair-1"]
    assert [seen.header("x-session-id") for seen in engine.requests] == [
        name for name in names for _ in SCRIPT
    ]
    for seen in engine.requests[:18]:
        assert (seen.header("x-own"), seen.json["seed"], seen.json["temperature"]) == ("1", 7, 0.5)

    end = "program.terminated"
    assert story(server, "configured") == (CALL * 3, ACT * 4, end)
    assert story(server, "composed") == (CALL * 6, ACT * 8, end)
    assert story(server, "model-alone") == story(server, "responses") == (CALL * 3, ACT * 3, end)
    assert story(server, "current") == (CALL * 3, ACT * 3, end)
    assert story(server, "given") == (CALL * 3, ACT * 4, end)
    assert story(server, "pair-0") == story(server, "pair-1") == (CALL * 3, ACT * 4, end)
    for name in set(names):
        runs = 2 if name == "composed" else 1
        assert server.types(name, "program.opened", end) == ["program.opened", end] * runs, "and never again"
        assert {entry["tool"] for entry in server.story(name, "acting.started")} == {"bash"}
        assert all(entry["ok"] for entry in server.story(name, "acting.finished"))
        assert server.program(name)["outcome"] == "success"
    program = server.program("configured")
    assert program["group"] == "eval-1"
    assert program["priority"] == 5, "a header that the user sets goes before ours, however it is spelt"


@pytest.mark.proves("minisweagent", "end")
def test_it_ends_with_the_status_of_the_run(through_server, engine, server):
    engine.plays(*SCRIPT)
    engine.refuses(lambda seen: Fails(404) if asked(seen) == "refused" else None)
    told = through_server.run(AGENTS, "ends").result
    assert told == ["LimitsExceeded", "NotFoundError", "KeyboardInterrupt"]
    outcomes = {name: server.ended(name)["outcome"] for name in server.opened()}
    assert outcomes == {
        "out-of-steps": "error",
        "refused": "error",
        "interrupted": "dropped",
        "forsaken": "dropped",
    }
    assert story(server, "interrupted") == (CALL, ACT, "program.terminated")


@pytest.mark.proves("minisweagent", "threads")
def test_the_stock_swebench_runner(through_server, engine, server):
    engine.plays(*SCRIPT)
    around = thunder.program(program_id="thunder-run").serialize()  # as below `thunder run`
    run = through_server.run(
        AGENTS, "swebench", CONFIG=str(HERE / "swebench.yaml"), THUNDER_PROGRAM_CONTEXT=around
    )
    assert run.result == {f"task__{number}": "done\n" for number in range(6)}

    said = Counter((seen.header("x-session-id"), asked(seen)) for seen in engine.requests)
    assert set(said.values()) == {3}, "one program for each instance"
    assert len({program for program, _ in said}) == len({task for _, task in said}) == 6
    for program, _ in said:
        assert story(server, program) == (CALL * 3, ACT * 3, "program.terminated")
        one = server.program(program)
        assert (one["outcome"], one["group"], one["parent_id"]) == ("success", "eval-1", "thunder-run")


@pytest.mark.proves("minisweagent", "threads")
def test_threads_never_tag_with_a_wrong_program(through_server, engine, server):
    engine.plays(*SCRIPT)
    assert through_server.run(AGENTS, "threads").result == ["Submitted"] * 4
    said = Counter((asked(seen), seen.header("x-session-id")) for seen in engine.requests)
    tagged = {(f"thread-{number}", f"thread-{number}"): 3 for number in range(4)}
    assert said == {**tagged, ("nobody's", None): 4}


def test_nothing_of_ours_reaches_another_host(through_server, engine, server, elsewhere):
    elsewhere.plays(*SCRIPT)
    assert through_server.run(AGENTS, "elsewhere", ELSEWHERE=elsewhere.url + "/v1").result == SUBMITTED
    assert [ours(seen) for seen in elsewhere.requests] == [{}] * 3
    assert engine.requests == []
    assert server.ended("elsewhere")["outcome"] == "success"


def test_the_agent_finishes_when_the_server_is_down(server_down, engine):
    engine.plays(*SCRIPT)
    run = server_down.run(AGENTS, "simple")
    assert run.result == SUBMITTED
    assert len(run.warnings) == 1, run.err


def test_disabled_leaves_no_trace(disabled, engine, server):
    engine.plays(*SCRIPT)
    run = disabled.run(AGENTS, "simple")
    assert (run.result, run.warnings) == (SUBMITTED, [])
    assert [ours(seen) for seen in engine.requests] == [{}] * 3
    assert not server.story("simple")


@pytest.mark.docker
@pytest.mark.proves("minisweagent", "resources")
def test_a_container_belongs_to_its_run(through_server, engine, server, image):
    engine.plays(*SCRIPT)
    told, container, run_args = through_server.run(AGENTS, "docker", IMAGE=image).result
    assert told == SUBMITTED
    assert run_args == ["--rm", "--label", "own=1", "--label", "thunder.program=in-docker"]
    assert story(server, "in-docker") == (CALL * 3, ACT * 4, "program.terminated")
    (declared,) = server.story("in-docker", "resource.declared")
    assert (declared["kind"], declared["ref"], declared["keep"]) == ("container", container, False)
    assert server.types("in-docker", "program.opened", "resource.declared", "call.arrived")[:3] == [
        "program.opened",
        "resource.declared",
        "call.arrived",
    ]


@pytest.mark.docker
@pytest.mark.proves("minisweagent", "resources")
def test_the_container_of_an_agent_that_dies_is_reclaimed(through_server, engine, server, image):
    engine.refuses(lambda seen: Hangs())
    process = through_server.start(AGENTS, "killed", IMAGE=image)
    engine.wait_for(len, timeout=90)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    container = (through_server.home / "container").read_text()
    assert inspected(container) is not None
    assert server.ended("killed")["outcome"] == "lease_expired"
    server.wait_for(lambda told: any(entry["type"] == "resource.reclaimed" for entry in told))
    assert inspected(container) is None


@pytest.mark.docker
def test_the_stock_swebench_runner_in_containers(through_server, engine, server, image):
    engine.plays(*SCRIPT)
    run = through_server.run(AGENTS, "swebench", CONFIG=str(HERE / "swebench-docker.yaml"))
    assert run.result == {f"task__{number}": "done\n" for number in range(6)}
    said = {(asked(seen), seen.header("x-session-id")) for seen in engine.requests}
    assert len(said) == 6
    containers = set()
    for task, program in said:
        assert story(server, program) == (CALL * 3, ACT * 5, "program.terminated"), "the start-up too"
        (declared,) = server.story(program, "resource.declared")
        containers.add(declared["ref"])
        name = f"task__{task.removeprefix('solve ')}"
        assert (
            (through_server.home / "out" / name / f"{name}.traj.json")
            .read_text()
            .count(f"thunder.program={program}")
        ), "its container has its label"
    assert len(containers) == 6


def story(server, program: str) -> tuple[list[str], list[str], str]:
    """Its calls, its tools, and what was told last.

    Calls and reports come by two ways, so that only what comes by the same one has an order.
    """
    return (
        server.types(program, *CALL),
        server.types(program, *ACT),
        server.types(program, "call.finished", *ACT, "program.terminated")[-1],
    )


def asked(seen) -> str:
    """The task of a request's conversation."""
    return next(message["content"] for message in seen.json["messages"] if message["role"] == "user")
