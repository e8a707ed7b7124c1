"""``thunder analyze`` from the shell."""

from __future__ import annotations

import json

import pytest

from .harness import thunder

ENGINES = ("--engine", "cpu-small", "--replicas", "1", "--kv-tokens")


@pytest.fixture
def crowd(tmp_path):
    """Twelve programs of eight turns: 1,000 to 3,800 tokens of context each."""
    path = tmp_path / "crowd.jsonl"
    requests = [
        {"in": 1000 + 400 * n, "out": 20, "shared": 1000 + 400 * (n - 1) if n else 0, "think_time": 3.0}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps({"id": f"s{n}", "requests": requests}) + "\n" for n in range(12)))
    return str(path)


def test_says_do_not_bother_when_that_is_the_answer(crowd):
    result = thunder("analyze", crowd, *ENGINES, "100000")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("do not bother: everything fits")


@pytest.mark.parametrize("words", [("--json",), ("--json", "-")])
def test_json_goes_to_stdout_and_the_rest_elsewhere(crowd, words):
    result = thunder("analyze", "--trace", crowd, *ENGINES, "16384", *words)
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert (value["source"], value["programs"], value["calls"]) == ("trace", 12, 96)
    assert value["working_set"]["peak"] > value["kv_tokens"] == 16384
    assert value["repeat_rate"] > 0.8
    assert value["verdict"] in ("worth it", "maybe", "do not bother")
    assert value["rows"][0]["policy"] == "passthrough"
    assert "over time" in result.stderr


def test_equal_arguments_give_equal_results_and_a_file(crowd, tmp_path):
    texts = []
    for name in ("one", "two"):
        path = tmp_path / name
        assert thunder("analyze", crowd, *ENGINES, "16384", "--json", str(path)).exit_code == 0
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_what_is_replayed_can_be_chosen(crowd):
    result = thunder(
        "analyze", crowd, *ENGINES, "16384", "--turns", "2", "--at-a-time", "3", "--longest-gap", "1"
    )
    assert "replayed: 2 turns of each session, gaps of at most 1 s" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a file"),
        (["x", "x"], "named twice"),
        (["x", "--server", "http://127.0.0.1:9"], "in place of files"),
        (["x", "--engine", "tpu"], "h100-qwen30b and cpu-small"),
        (["x", "--longest-gap", "nan"], "number of seconds"),
        (["x", "--replicas", "0"], "--replicas"),
        (["x", "--json", "/no/such/folder/x.json"], "no folder /no/such/folder"),
    ],
)
def test_wrong_usage_is_explained(crowd, words, says):
    words = [crowd if word == "x" else word for word in words]
    result = thunder("analyze", *words, NO_COLOR="1", TERM="dumb", COLUMNS="200")
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert says in result.output


def test_what_cannot_be_read_or_written_is_a_failure(crowd, tmp_path):
    missing = thunder("analyze", str(tmp_path / "none"))
    assert (missing.exit_code, "none: cannot be read" in missing.output) == (1, True)
    small = thunder("analyze", crowd, *ENGINES, "500")
    assert (small.exit_code, "no call fits into these engines" in small.output) == (1, True)
    unwritable = thunder("analyze", crowd, *ENGINES, "100000", "--json", str(tmp_path))
    assert (unwritable.exit_code, "cannot be written" in unwritable.output) == (1, True)


def test_help_has_examples():
    result = thunder("analyze", "--help", COLUMNS="200")
    assert result.exit_code == 0
    assert "curl -N http://127.0.0.1:8300/thunder/v1/stream" in result.output
