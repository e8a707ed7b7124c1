"""What docs/simulate.md says holds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from thunder_server.cli.app import app
from thunder_server.simulation.costs import Cost
from thunder_server.simulation.generated import GENERATORS

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
LINES = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_one(line: str) -> None:
    """Each is parsed to its end; none is run."""
    program, name, *words = shlex.split(line)
    assert (program, name) == ("thunder", "simulate")
    get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]


def test_every_workload_and_every_cost_is_there() -> None:
    for name in GENERATORS:
        assert f"`--workload {name}`" in PAGE
    for name in Cost().rounded():
        assert f"| `{name}` |" in PAGE
