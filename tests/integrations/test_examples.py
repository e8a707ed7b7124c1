"""Every file in ``examples/`` runs as it stands, in the lane that has its framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness.engine import MODEL

EXAMPLES = Path(__file__).parents[2] / "examples"
LANES = {"with_litellm.py": "a"}


@pytest.mark.parametrize(
    ("name", "lane"),
    [pytest.param(name, lane, id=name) for name, lane in LANES.items()],
    indirect=["lane"],
)
def test_it_runs_as_programs_that_succeed(name, lane, through_server, engine, server):
    through_server.run(EXAMPLES / name, MODEL)
    called = {entry["program_id"] for entry in server.events if entry["type"] == "call.arrived"}
    assert called
    assert {server.ended(program)["outcome"] for program in called} == {"success"}


def test_none_is_left_out():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LANES)
