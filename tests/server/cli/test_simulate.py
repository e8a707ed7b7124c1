"""``thunder simulate`` from the shell."""

from __future__ import annotations

import json

import pytest

from thunder_server.core import POLICIES

from .harness import thunder

SMALL = ("simulate", "--programs", "6", "--turns", "3", "--kv-tokens", "300000")
FIELDS = [
    "policy",
    "signals",
    "workload",
    "seed",
    "programs",
    "replicas",
    "kv_tokens",
    "working_set",
    "makespan_s",
    "steps_per_min",
    "output_tokens_per_s",
    "hit_rate",
    "recomputed_tokens",
    "wait_s",
    "pauses",
    "restores",
    "moves",
    "cost_token_s",
]


def rows(result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


@pytest.mark.parametrize("json_words", [["--json"], ["--json", "-"]])
def test_json_goes_to_stdout_and_nothing_else_does(json_words):
    (row,) = rows(thunder(*SMALL, *json_words, "--policy", "paper"))
    assert list(row) == FIELDS
    assert list(row["wait_s"]) == ["p50", "p95", "p99", "max"]
    assert list(row["cost_token_s"]) == ["decode", "prefill", "recompute", "unused", "caching"]
    assert (row["policy"], row["programs"], row["replicas"], row["kv_tokens"]) == ("paper", 6, 2, 300_000)
    assert (row["signals"], row["workload"], row["seed"]) == ("explicit", "recorded", 0)


def test_all_policies_by_default_and_the_same_for_the_same_seed():
    words = ("simulate", "--workload", "swe", "--programs", "2", "--signals", "inferred", "--json")
    one, two, other = thunder(*words), thunder(*words), thunder(*words, "--seed", "1")
    assert [row["policy"] for row in rows(one)] == list(POLICIES)
    assert one.stdout == two.stdout
    assert rows(other)[0]["makespan_s"] != rows(one)[0]["makespan_s"]


def test_variants_of_a_policy_are_rows_of_their_own():
    names = "cap:1,cap:3,paper:1"
    result = rows(thunder(*SMALL, "--policy", names, "--json"))
    assert [row["policy"] for row in result] == names.split(",")
    assert result[0]["makespan_s"] > result[1]["makespan_s"]


def test_tables_files_and_a_page(tmp_path):
    page, values = tmp_path / "page.html", tmp_path / "rows.json"
    result = thunder(*SMALL, "--policy", "passthrough,paper", "--html", str(page), "--json", str(values))
    assert result.exit_code == 0
    assert "Where the memory went" in result.stdout
    assert len(json.loads(values.read_text())["details"]) == 2
    text = page.read_text()
    assert text.count("<polyline") == 4
    assert "http" not in text.replace("http-equiv", "")
    assert "What KV memory was spent on" in text


def test_several_traces_and_what_they_lack(tmp_path):
    request = {"t": 0, "in": 100, "out": 10, "hash_ids": [1]}
    for name in "ab":
        line = {"id": name, "requests": [request, request | {"in": 0}]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    result = thunder("simulate", "--trace", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--json")
    assert [row["programs"] for row in rows(result)] == [2] * len(POLICIES)
    assert "left out: 2 × turn without a prompt" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "fifo"], "no policy 'fifo'"),
        (["--policy", "cap:x"], "'x' is no number"),
        (["--policy", "cap:0"], "at least 1"),
        (["--policy", "paper:0.5"], "at least 1"),
        (["--policy", "passthrough:3"], "take a number"),
        (["--policy", "paper,paper"], "twice"),
        (["--policy", ""], "no policy ''"),
        (["--workload", "chess"], "swe, assistant, orchestration, rl-group, burst"),
        (["--workload", "swe", "--trace", "x"], "one of them"),
        (["--workload", "swe", "--turns", "4"], "--turns"),
        (["--engine", "tpu"], "h100-qwen30b and cpu-small"),
        (["--signals", "smoke"], "neither explicit nor inferred"),
        (["--programs", "0"], "--programs"),
        (["--replicas", "0"], "--replicas"),
        (["--kv-tokens", "15"], "--kv-tokens"),
        (["--longest-gap", "nan"], "number of seconds"),
        (["--seed", "x"], "--seed"),
        (["--json", "/no/such/folder/x.json"], "no folder /no/such/folder"),
        (["--nonsense"], "--nonsense"),
        (["word"], "word"),
    ],
)
def test_wrong_usage_is_explained(words, says):
    result = thunder("simulate", *words, NO_COLOR="1", TERM="dumb", COLUMNS="200")
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_what_cannot_be_read_or_written_is_a_failure(tmp_path):
    missing = thunder("simulate", "--trace", str(tmp_path / "none.jsonl"))
    assert (missing.exit_code, "none.jsonl: cannot be read" in missing.output) == (1, True)
    (tmp_path / "bad.jsonl").write_text('{"id": "s"}\n')
    bad = thunder("simulate", "--trace", str(tmp_path / "bad.jsonl"))
    assert (bad.exit_code, "bad.jsonl, line 1: 'requests' is missing" in bad.output) == (1, True)
    unwritable = thunder(*SMALL, "--policy", "paper", "--json", str(tmp_path))
    assert (unwritable.exit_code, "cannot be written" in unwritable.output) == (1, True)


def test_engines_that_take_no_call_are_a_failure(tmp_path):
    requests = [{"t": 0, "in": 5000, "out": 10, "hash_ids": []}]
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "s", "requests": requests}) + "\n")
    result = thunder("simulate", "--trace", str(tmp_path / "t.jsonl"), "--kv-tokens", "1000", "--json")
    assert result.exit_code == 1
    assert "no call was served" in result.stderr
    assert json.loads(result.stdout)["rows"][0]["hit_rate"] is None


def test_help_has_examples():
    result = thunder("simulate", "--help", COLUMNS="200")
    assert result.exit_code == 0
    assert "thunder simulate --trace monday.jsonl.gz" in result.output


def test_the_router_can_be_left_out_and_helped():
    result = thunder(*SMALL, "--policy", "phase,phase:shadow", "--kv-events", "--json")
    assert [row["policy"] for row in rows(result)] == ["phase", "phase:shadow"]
    for details in json.loads(result.stdout)["details"]:
        tokens = details["prefix_tokens"]
        assert tokens["cached"] > 0
        assert tokens["mispredicted"] <= 0.05 * tokens["cached"]


def test_a_policy_that_stands_still_is_left_out_and_the_others_are_not():
    words = ("--workload", "orchestration", "--programs", "16", "--replicas", "1", "--kv-tokens", "200000")
    result = thunder("simulate", *words, "--policy", "paper:1,passthrough", "--json")
    assert "paper:1 is left out: it stands still from" in result.stderr
    assert [row["policy"] for row in rows(result)] == ["passthrough"]
    assert thunder("simulate", *words, "--policy", "paper:1").exit_code == 1
