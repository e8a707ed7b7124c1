"""Every file in ``examples/`` runs as it stands, in the lane that has its framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness.dialogue import Tool, calls
from .harness.engine import MODEL

EXAMPLES = Path(__file__).parents[2] / "examples"
LANES = {
    "with_autogen.py": "a",
    "with_crewai.py": "crewai",
    "with_langchain.py": "a",
    "with_litellm.py": "a",
    "with_minisweagent.py": "a",
    "with_openai_agents.py": "a",
    "with_openhands.py": "b",
    "with_pydantic_ai.py": "a",
    "with_smolagents.py": "a",
}
ELSEWHERE = {"with_sweagent.py"}  # in sweagent/test_real.py, where SWE-agent is
SCRIPTS = {
    "with_minisweagent.py": (calls(Tool("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})),),
}


@pytest.mark.parametrize(
    ("name", "lane"),
    [pytest.param(name, lane, id=name) for name, lane in LANES.items()],
    indirect=["lane"],
)
def test_it_runs_as_programs_that_succeed(name, lane, through_server, engine, server):
    if name in SCRIPTS:
        engine.plays(*SCRIPTS[name])
    through_server.run(EXAMPLES / name, MODEL)
    called = {entry["program_id"] for entry in server.events if entry["type"] == "call.arrived"}
    assert called
    assert {server.ended(program)["outcome"] for program in called} == {"success"}


def test_none_is_left_out():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LANES) | ELSEWHERE
