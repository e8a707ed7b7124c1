"""The hooks for SWE-agent: that they fit it, and what they do, played by its contract."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path

import pytest

from thunder_integrations import sweagent

from ..harness.engine import ours
from .contract import ATTRIBUTES, HOOKS

HERE = Path(__file__).parent
STAND_IN = HERE / "stand_in.py"
CALL, ACT = ["call.arrived", "call.finished"], ["acting.started", "acting.finished"]
HELD = ("resource.declared", "resource.released")

pytestmark = pytest.mark.lane("a")


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_take_what_they_are_called_with(name):
    ours = getattr(sweagent, name)
    for hook, keywords in HOOKS[name][1].items():
        method = vars(ours).get(hook)
        if method is not None:
            assert set(inspect.signature(method).parameters) - {"self"} == keywords, hook
    hook = object.__new__(ours)
    assert hook.on_something_new(anything=1) is None, "a later version may tell more"
    with pytest.raises(AttributeError):
        _ = hook.something_else


def test_the_contract_is_that_of_swe_rex_and_of_swe_agent_where_it_is_installed(lane):
    asked = {"attributes": list(ATTRIBUTES), "hooks": [path for path, _ in HOOKS.values()]}
    told = lane.run(HERE / "inspection.py", json.dumps(asked)).result
    for path, keywords in ATTRIBUTES.items():
        found = told["attributes"][path]
        if found is None and path.startswith("sweagent."):
            continue
        assert found is not None, f"{path} is gone"
        assert keywords <= set(found), path
    for path, hooks in HOOKS.values():
        theirs = told["hooks"].get(path)
        if theirs is not None:
            assert {name: set(theirs.get(name, ["gone"])) for name in hooks} == hooks


@pytest.mark.proves("sweagent", "identity", "acting", "resources", "end")
def test_single_runs(through_server, engine, server):
    told = through_server.run(STAND_IN, "singles").result
    assert told == {"broken": "the command broke off", "current": True}
    calls = {"solved": 2, "limited": 4, "again": 2, "broken": 1}
    said = Counter(
        (seen.json["messages"][0]["content"], seen.header("x-session-id")) for seen in engine.requests
    )
    assert said == {(name, name): number for name, number in calls.items()}
    assert {seen.header("user-agent") for seen in engine.requests} == {"swe-agent/1.1.0"}
    outcomes = {name: server.ended(name)["outcome"] for name in calls}
    assert outcomes == {"solved": "success", "limited": "error", "again": "success", "broken": "error"}
    for name, number in calls.items():
        assert server.types(name, *CALL) == CALL * number
        assert server.types(name, *ACT) == ACT * number
        tools = [entry["tool"] for entry in server.story(name, ACT[0])]
        assert tools == (["str_replace_editor", "submit"] * 2)[:number]
        assert server.program(name)["group"] == "eval-1"
        assert server.types(name, *HELD, "program.terminated")[-1] == "program.terminated"
    ends = server.types("limited", "program.opened", "program.terminated")
    assert ends == ["program.opened", "program.terminated"] * 2, "the same problem a second time"
    held = [(entry["type"], entry["kind"], entry["ref"]) for entry in server.story("again", *HELD)]
    assert held == [
        (HELD[0], "container", "again-1"),
        (HELD[1], "container", "again-1"),
        (HELD[0], "container", "again-2"),
        (HELD[1], "container", "again-2"),
    ]
    assert [entry["ref"] for entry in server.story("broken", *HELD)] == ["broken-1"], "left to be reclaimed"


@pytest.mark.proves("sweagent", "threads")
def test_a_batch_with_worker_threads(through_server, engine, server):
    names, arguments = through_server.run(STAND_IN, "batch").result
    programs = {server.program(program)["name"]: program for program in server.opened()}
    assert set(programs) == {*names, None}
    said = Counter(
        (seen.json["messages"][0]["content"], seen.header("x-session-id")) for seen in engine.requests
    )
    assert said == {(name, programs[name]): 1 if name.startswith("broken") else 2 for name in names}
    for name, docker_args in zip(names, arguments, strict=True):
        program = server.program(programs[name])
        assert docker_args == ["--network=none", f"--label=thunder.program={programs[name]}"]
        assert (program["parent_id"], program["priority"]) == ("evaluation", 2)
        assert program["outcome"] == ("error" if name.startswith("broken") else "success")
        tools = [] if name.startswith("broken") else ["str_replace_editor", "submit"]
        assert [entry["tool"] for entry in server.story(programs[name], ACT[0])] == tools
        assert f"{name}-1" in [entry["ref"] for entry in server.story(programs[name], HELD[0])]
    assert server.program("evaluation")["outcome"] == "success"


def test_nothing_of_ours_reaches_another_host(through_server, engine, server, elsewhere):
    through_server.run(STAND_IN, "elsewhere", ELSEWHERE=elsewhere.url + "/v1")
    assert [ours(seen) for seen in elsewhere.requests] == [{}, {}]
    assert server.ended("elsewhere")["outcome"] == "success"


def test_the_agent_finishes_when_the_server_is_down(server_down, engine):
    run = server_down.run(STAND_IN, "simple")
    assert len(engine.requests) == 2
    assert len(run.warnings) == 1, run.err


def test_disabled_leaves_no_trace(disabled, engine, server):
    run = disabled.run(STAND_IN, "simple")
    assert (run.result, run.warnings) == (["--network=none"], [])
    assert [ours(seen) for seen in engine.requests] == [{}, {}]
    assert not server.story("simple")


def test_wrong_usage_is_told(lane):
    run = lane.run("-m thunder_integrations.sweagent", "walk", ok=False)
    assert run.code == 2
    assert "run-batch" in run.err
