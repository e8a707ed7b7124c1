"""The kit for real engines, on emulated ones: its words, its work, its agents and its tables."""

from __future__ import annotations

import json

import pytest

from benchmarks.engines import table, work
from benchmarks.engines.__main__ import arguments, main
from benchmarks.engines.replicas import vllm_command
from benchmarks.engines.simulated import Host, endless_memory, simulate
from benchmarks.engines.targets import Route, Target, Telling, policy_flags
from thunder_server.demo.fleet import DemoError
from thunder_server.simulation.simulator import Machines
from thunder_server.simulation.time_model import PRESETS

SMALL = work.Shape(programs=6, turns=3, first=300, growth=100, output=8, tool=0.2)


class TestTargets:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("direct", Target(name="direct", route=Route.DIRECT)),
            ("direct:12", Target(name="direct:12", route=Route.DIRECT, at_a_time=12)),
            ("vllm-router", Target(name="vllm-router", route=Route.VLLM_ROUTER)),
            (
                "thunder:paper:1",
                Target(
                    name="thunder:paper:1", route=Route.THUNDER, policy="paper:1", telling=Telling.EXPLICIT
                ),
            ),
            (
                "thunder:phase/inferred",
                Target(name="thunder:phase/inferred", route=Route.THUNDER, policy="phase"),
            ),
            ("mine=http://x:1/v1/", Target(name="mine", route=Route.URL, url="http://x:1")),
            (
                "old=http://x:1,body",
                Target(name="old", route=Route.URL, url="http://x:1", telling=Telling.BODY),
            ),
        ],
    )
    def test_are_named_on_the_command_line(self, text: str, expected: Target) -> None:
        assert Target.parse(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "direct:0",
            "direct:x",
            "thunder",
            "thunder:phase/loud",
            "x=ftp://y",
            "=http://x",
            "x=http://y,z",
        ],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"direct:N|NAME=http"):
            Target.parse(text)

    def test_policies_become_flags(self) -> None:
        assert policy_flags("phase") == ["--policy", "phase"]
        assert policy_flags("cap:6") == ["--policy", "cap", "--cap", "6"]
        assert policy_flags("phase:warm") == ["--policy", "phase", "--keep-warm"]

    @pytest.mark.parametrize(
        "words",
        [
            ["--targets", "thunder:fifo"],
            ["--targets", "thunder:cap:x"],
            ["--targets", "thunder:phase:cold"],
            ["--kv-events", "--engine", "emulate"],
            ["--simulate", "--speed", "2"],
            ["--x"],
        ],
    )
    def test_wrong_words_end_at_once(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            arguments(words)
        assert ended.value.code == 2
        assert "Traceback" not in capsys.readouterr().err

    def test_without_vllm_it_says_what_to_do(self) -> None:
        with pytest.raises(DemoError, match=r"no-such-vllm; install it .* or take --engine emulate"):
            vllm_command("/no-such-vllm")


class TestWork:
    def test_is_the_same_for_the_same_seed(self) -> None:
        assert work.sessions(SMALL, 1) == work.sessions(SMALL, 1) != work.sessions(SMALL, 2)

    def test_has_the_sizes_and_times_that_it_says(self) -> None:
        shape = work.Shape(programs=200, slow=0.1)
        made = work.sessions(shape, 0)
        turns = [turn for session in made for turn in session.turns[1:]]
        assert {turn.prompt_tokens - turn.shared_tokens for turn in turns} == {shape.growth + shape.output}
        assert min(len(session.turns) for session in made) == 5
        assert max(len(session.turns) for session in made) == 15
        slow = [turn for turn in turns if turn.gap_s > 1.5 * shape.tool]
        assert 0.07 < len(slow) / len(turns) < 0.13
        largest = max(turn.prompt_tokens + turn.output_tokens for turn in turns)
        assert largest <= shape.largest_context()

    def test_plays_in_the_simulator_as_well(self) -> None:
        machines = Machines(preset=PRESETS["cpu-small"], replicas=2, kv_tokens=4096)
        sessions = work.sessions(SMALL, 0)
        for text, signals in (
            ("thunder:cap:2", "explicit"),
            ("thunder:phase:warm", "explicit"),
            ("direct", "inferred"),
            ("direct:3", "inferred"),
        ):
            row = simulate(Target.parse(text), sessions, 0, 4, machines)
            assert row is not None
            assert (row["policy"], row["signals"], row["programs"]) == (text, signals, 6)
        for text in ("vllm-router", "thunder:phase/released"):
            assert simulate(Target.parse(text), sessions, 0, 4, machines) is None

    def test_takes_no_longer_with_endless_memory(self) -> None:
        machines = Machines(preset=PRESETS["cpu-small"], replicas=1, kv_tokens=1200)
        sessions = work.sessions(SMALL, 0)
        limited = simulate(Target.parse("thunder:phase"), sessions, 0, 4, machines)
        slower = endless_memory(sessions, 4, machines, Host(step_s=0.02, call_s=0.1))
        assert limited is not None
        assert endless_memory(sessions, 4, machines, Host()) < limited["makespan_s"]
        assert endless_memory(sessions, 4, machines, Host()) < slower


ROWS = [
    {"policy": name, "signals": "explicit", "seed": seed, "makespan_s": seconds, "hit_rate": 0.5}
    | {"pauses": 1, "moves": 0, "kv_tokens": 10, "replicas": 2}
    | {"cost_token_s": {"decode": 20, "prefill": 20, "recompute": 50, "unused": 50, "caching": 40}}
    for name, times in (("direct", (10.0, 20.0)), ("thunder:phase", (5.0, 8.0)))
    for seed, seconds in enumerate(times)
]
KNOWN = {"calls": 9, "exact": 8, "predicted": 1500, "cached": 1480, "mispredicted": 20}
DETAILS = [
    {"policy": row["policy"], "seed": row["seed"], "call_s": {"p99": 2.0}, "computed_tokens": 1000}
    | {"forecast": None if row["policy"] == "direct" else KNOWN}
    for row in ROWS
]


class TestTables:
    def test_ratios_are_against_the_first_target_of_the_same_seed(self) -> None:
        lines = table.markdown(ROWS, DETAILS).splitlines()
        assert len(lines) == 4
        assert "| 10 20 | 15 | 1.00 (1.00 to 1.00) |" in lines[2]
        assert "| 5 8 | 6 | 2.25 (2.00 to 2.50) | 50.0% (50.0% to 50.0%) | 1k |" in lines[3]
        assert lines[3].endswith("| 4 (4 to 4) |")

    def test_forecasts_are_those_of_servers(self) -> None:
        lines = table.forecasts(DETAILS).splitlines()
        assert len(lines) == 4
        assert lines[2] == "| thunder:phase | 0 | 9 | 8 | 1,480 | 1,500 | 20 |"
        assert table.forecasts(DETAILS[:1]) == ""

    def test_the_simulator_is_held_against_it(self) -> None:
        simulated = [ROWS[0] | {"makespan_s": 9.0, "hit_rate": 0.52}]
        assert "| -10.0% | 50.0% | 52.0% | +2.0 points |" in table.against_simulation(ROWS, simulated)


@pytest.mark.slow
def test_the_whole_kit_on_emulated_engines(tmp_path, capsys):
    path = tmp_path / "results.json"
    words = ["--engine", "emulate", "--speed", "40", "--kv-tokens", "4096", "--seeds", "0"]
    words += ["--json", str(path)]
    words += ["--programs", "6", "--at-a-time", "3", "--turns", "3", "--first", "300", "--growth", "100"]
    words += ["--output", "8", "--tool", "0.05"]
    words += [
        "--targets",
        "direct",
        "direct:2",
        "thunder:cap:1",
        "thunder:paper/inferred",
        "thunder:cap:1/released",
    ]
    assert main(words) == 0
    value = json.loads(path.read_text())
    rows = {row["policy"]: row for row in value["rows"]}
    assert list(rows) == words[-5:]
    assert [row["signals"] for row in rows.values()] == [
        "inferred",
        "inferred",
        "explicit",
        "inferred",
        "inferred",
    ]
    calls = sum(len(session.turns) for session in work.sessions(SMALL, 0))
    assert {detail["calls"] for detail in value["details"]} == {calls}
    assert all(detail["computed_tokens"] > 0 for detail in value["details"])
    forecasts = {detail["policy"]: detail["forecast"] for detail in value["details"]}
    assert forecasts["direct"] is None
    assert forecasts["thunder:cap:1"]["calls"] == calls
    assert 0 < forecasts["thunder:cap:1"]["exact"] <= calls
    assert {detail["failed"] for detail in value["details"]} == {0}
    for row in rows.values():
        assert (row["programs"], row["replicas"], row["kv_tokens"], row["seed"]) == (6, 2, 4096, 0)
        assert row["hit_rate"] > 0.2
        assert row["cost_token_s"] is not None
    # One program an engine, of three at a time: somebody had to wait.
    assert rows["thunder:cap:1"]["wait_s"]["max"] > 0
    assert rows["direct"]["wait_s"]["max"] == 0
    printed = capsys.readouterr().out
    assert printed.count("| thunder:cap:1 | explicit |") == 1


@pytest.mark.slow
def test_what_does_not_answer_is_named(capsys):
    assert main(["--engines", "http://127.0.0.1:9", "--seeds", "0"]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err
