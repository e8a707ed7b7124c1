"""What agents are given to do: the recording's sizes, changed by the documented rules and no others."""

from __future__ import annotations

import json

import pytest

from thunder_server.demo import plan
from thunder_server.demo.plan import Script, Shape
from thunder_server.simulation.workload import recorded

SESSIONS = recorded().sessions
SHAPE = Shape(turns=8)


def test_every_agent_gets_a_stretch_of_a_recorded_session() -> None:
    scripts = plan.write_scripts(SESSIONS, 48, SHAPE, speed=1.0)
    assert len({script.name for script in scripts}) == 48
    by_id = {session.id: session for session in SESSIONS}
    for script in scripts:
        turns = by_id[script.name.rpartition("-")[0]].turns
        sizes = [turn.prompt_tokens for turn in turns]
        wanted = [step.prompt_tokens for step in script.steps]
        assert any(sizes[start : start + 8] == wanted for start in range(len(sizes)))
        assert wanted[0] >= SHAPE.smallest
        assert max(wanted) <= SHAPE.largest
        assert script.steps[0].gap_s == script.steps[0].kept_tokens == 0
        for step in script.steps:
            assert step.gap_s <= plan.TOOL_CAP_S
            assert 0 < step.output_tokens <= plan.LARGEST_OUTPUT
            assert step.kept_tokens <= step.prompt_tokens


def test_every_session_gives_a_stretch_before_any_gives_a_second() -> None:
    scripts = plan.write_scripts(SESSIONS, 30, SHAPE, speed=1.0)
    assert len({script.name.rpartition("-")[0] for script in scripts}) == 30


def test_sub_agents_come_along_and_count() -> None:
    scripts = plan.write_scripts(SESSIONS, 48, SHAPE, speed=1.0)
    parents = [script for script in scripts if any(step.children for step in script.steps)]
    assert parents
    for parent in parents:
        assert parent.calls > len(parent.steps)
        assert any(step.tool == "task" for step in parent.steps)


def test_the_same_every_time_and_as_json() -> None:
    scripts = plan.write_scripts(SESSIONS, 48, SHAPE, speed=3.0)
    assert scripts == plan.write_scripts(SESSIONS, 48, SHAPE, speed=3.0)
    for script in scripts:
        assert Script.from_json(json.loads(json.dumps(script.to_json()))) == script


def test_speed_shortens_gaps_and_nothing_else() -> None:
    once = plan.write_scripts(SESSIONS, 8, SHAPE, speed=1.0)
    twice = plan.write_scripts(SESSIONS, 8, SHAPE, speed=2.0)
    for slow, fast in zip(once, twice, strict=True):
        assert [step.gap_s / 2 for step in slow.steps] == [step.gap_s for step in fast.steps]
        assert [step.prompt_tokens for step in slow.steps] == [step.prompt_tokens for step in fast.steps]


def test_more_agents_than_stretches() -> None:
    scripts = plan.write_scripts(SESSIONS, 1000, SHAPE, speed=1.0)
    assert len({script.name for script in scripts}) == 1000


def test_shrinking_keeps_proportions() -> None:
    scripts = plan.write_scripts(SESSIONS, 8, SHAPE, speed=1.0)
    small = plan.shrink(scripts, 0.1)
    assert plan.total_context(small) == pytest.approx(0.1 * plan.total_context(scripts), rel=0.02)
    for script, other in zip(scripts, small, strict=True):
        assert [0.1 * step.gap_s for step in script.steps] == [step.gap_s for step in other.steps]
        assert all(0 < step.output_tokens <= 1000 for step in other.steps)


def test_a_shape_that_no_session_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="no session has 9000 turns in a row"):
        plan.write_scripts(SESSIONS, 1, Shape(turns=9000), speed=1.0)
