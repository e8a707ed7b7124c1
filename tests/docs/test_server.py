"""What docs/server.md says holds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from thunder_server import stream
from thunder_server.cli.app import app
from thunder_server.settings import Settings, load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_setting_is_there_under_its_three_names() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)[^|]*\| `(\w+)` \|", PAGE, re.MULTILINE))
    names = {name.replace("_", "-"): f"THUNDER_{name.upper()}" for name in Settings.model_fields}
    assert rows == names
    for name in Settings.model_fields:
        assert f"| `{name}` |" in PAGE


def test_the_command_line_offers_the_same_settings() -> None:
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert {parameter.name for parameter in command.params} - {"help"} == {*Settings.model_fields, "config"}


def test_the_file_is_taken_as_it_stands(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "thunder.toml").write_text(text)
    settings = load_settings({}, {}, str(tmp_path / "thunder.toml"))
    assert [backend.engine for backend in settings.backend] == ["vllm", "vllm", "openai"]


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines()])
def test_every_command_is_one(line: str) -> None:
    """Each is parsed to its end; none is run."""
    program, *words = shlex.split(line)
    assert program == "thunder"
    command, context = get_command(app), None
    while words:
        context = command.make_context(command.name, words, parent=context)
        if not hasattr(command, "commands"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, words = command.resolve_command(context, rest)
        command.name = name


def test_every_type_of_the_stream_is_named() -> None:
    source = Path(stream.__file__).read_text()
    for kind in set(re.findall(r'"((?:program|call|backend|stream)\.[a-z]+)"', source)):
        assert f"`{kind}`" in PAGE
