"""What docs/policy.md says holds."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.policy.diagram import diagram
from thunder_server.core import durations
from thunder_server.core.policies import phase
from thunder_server.simulation.time_model import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()


def test_the_diagram_is_that_of_the_table() -> None:
    assert re.findall(r"```mermaid\n(.*?)\n```", PAGE, re.DOTALL) == [diagram()]


def test_break_even_times_are_those_of_the_presets() -> None:
    large, small = PRESETS["h100-qwen30b"], PRESETS["cpu-small"]
    assert f"It is {large.kv_tokens * large.time.per_prefill_token:.0f} s for" in PAGE
    assert f"and {small.kv_tokens * small.time.per_prefill_token:.1f} s for" in PAGE


def test_the_figures_of_the_rules_are_the_policys() -> None:
    for said in (
        f"up to {phase.OVERTAKING} that do not fit",
        f"not for longer than {phase.PATIENCE_S:.0f} s",
        f"for {phase.HEAD_START_S:.0f} s longer",
        f"latest {durations.SAMPLES}",
        f"{1 - durations.RARE:.0%} of them".replace("%", " %"),
        f"after {phase.SLICE:.0f} T* a program's place",
    ):
        assert said in PAGE, said
