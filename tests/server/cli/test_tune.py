"""``thunder tune`` from the shell."""

from __future__ import annotations

import json
import tomllib

import pytest

from thunder_server.settings import load_settings

from .harness import thunder

ENGINES = ("--engine", "cpu-small", "--replicas", "1", "--kv-tokens", "12000")


@pytest.fixture
def crowd(tmp_path):
    """Ten programs of five turns: 1,000 to 2,600 tokens of context each."""
    path = tmp_path / "crowd.jsonl"
    requests = [
        {"in": 1000 + 400 * n, "out": 20, "shared": 1000 + 400 * (n - 1) if n else 0, "think_time": 3.0}
        for n in range(5)
    ]
    path.write_text("".join(json.dumps({"id": f"s{n}", "requests": requests}) + "\n" for n in range(10)))
    return str(path)


def test_prints_a_fragment_that_the_server_takes_and_tables_elsewhere(crowd, tmp_path):
    result = thunder("tune", crowd, *ENGINES, "--policy", "paper,cap")
    assert result.exit_code == 0, result.output
    path = tmp_path / "thunder.toml"
    path.write_text(result.stdout)
    settings = load_settings({"backend": ["http://127.0.0.1:8000"]}, {}, str(path))
    assert settings.policy == tomllib.loads(result.stdout)["policy"]
    assert "times as fast" in result.stdout
    assert "cap at its best" in result.stderr
    assert "paper_interval = 1" in result.stderr
    again = thunder("tune", crowd, *ENGINES, "--policy", "paper,cap")
    assert again.stdout == result.stdout


def test_json_has_every_trial(crowd, tmp_path):
    result = thunder("tune", "--trace", crowd, *ENGINES, "--policy", "cap", "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["winner"]["policy"] == "cap"
    assert value["trials"][0]["about"] == "as it comes"
    path = tmp_path / "trials.json"
    assert thunder("tune", crowd, *ENGINES, "--policy", "cap", "--json", str(path)).exit_code == 0
    assert json.loads(path.read_text()) == value


def test_nothing_to_turn_is_an_answer_too(crowd):
    result = thunder("tune", crowd, *ENGINES, "--policy", "phase")
    assert (result.exit_code, result.stdout) == (0, 'policy = "phase"\n')


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a file"),
        (["x", "--policy", "fifo"], "some of phase, paper, cap"),
        (["x", "--policy", "cap,cap"], "each once"),
        (["x", "--signals", "smoke"], "neither explicit nor inferred"),
        (["x", "--engine", "tpu"], "h100-qwen30b and cpu-small"),
        (["x", "--json", "/no/such/folder/x.json"], "no folder /no/such/folder"),
    ],
)
def test_wrong_usage_is_explained(crowd, words, says):
    words = [crowd if word == "x" else word for word in words]
    result = thunder("tune", *words, NO_COLOR="1", TERM="dumb", COLUMNS="200")
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert says in result.output


def test_what_cannot_be_read_or_written_is_a_failure(crowd, tmp_path):
    missing = thunder("tune", str(tmp_path / "none"))
    assert (missing.exit_code, "none: cannot be read" in missing.output) == (1, True)
    small = thunder("tune", crowd, *ENGINES[:-1], "500", "--policy", "phase")
    assert (small.exit_code, "no call fits into these engines" in small.output) == (1, True)
    unwritable = thunder("tune", crowd, *ENGINES, "--policy", "phase", "--json", str(tmp_path))
    assert (unwritable.exit_code, "cannot be written" in unwritable.output) == (1, True)
