"""How the words after ``thunder serve`` are read."""

from __future__ import annotations

import pytest
from typer.main import get_command

from thunder_server.cli.app import app

from .harness import thunder


@pytest.mark.parametrize(
    ("words", "backends"),
    [
        ("--backend a", ["a"]),
        ("--backend a b", ["a", "b"]),
        ("--backend a b --port 1 --backend c", ["a", "b", "c"]),
        ("--backend=a b", ["a", "b"]),
        ("--port 1 --backend a --insecure", ["a"]),
        ("--insecure", []),
    ],
)
def test_backend_takes_several(words: str, backends: list[str]) -> None:
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert [*serve.make_context("serve", words.split()).params["backend"]] == backends


@pytest.mark.parametrize(
    "words", [["a"], ["--port", "1", "a"], ["--insecure", "a"], ["--state", "x"], ["--shadow"], ["--backend"]]
)
def test_other_words_are_wrong_usage(words: list[str]) -> None:
    result = thunder("serve", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_complaints_are_one_line_and_name_the_place() -> None:
    result = thunder("serve", "--backend", "http://a:1", THUNDER_POLL="often")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "thunder: THUNDER_POLL: should be a number, not 'often'\n"
