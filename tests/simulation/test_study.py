"""Workloads: recorded, generated, from files; the same for every policy."""

from __future__ import annotations

import json

import pytest

from tests.simulation.sessions import machines
from thunder_server.core import make_policy
from thunder_server.simulation.generated import GENERATORS, LARGEST_CONTEXT
from thunder_server.simulation.jsonlines import TraceError
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines
from thunder_server.simulation.study import Cut, Study, from_files, generate, packaged
from thunder_server.simulation.time_model import PRESETS
from thunder_server.simulation.workload import Gap

LARGE = Machines(preset=PRESETS["h100-qwen30b"], replicas=2, kv_tokens=1_700_000)
SMALL = Machines(preset=PRESETS["cpu-small"], replicas=2, kv_tokens=16_384)


def every_turn(session):
    for turn in session.turns:
        yield turn
        for child in turn.children:
            yield from every_turn(child)


def turns(workload):
    return [turn for start in workload.starts for turn in every_turn(start.session)]


def ids(session):
    yield session.id
    for turn in session.turns:
        for child in turn.children:
            yield from ids(child)


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_agents_are_sound(name):
    workload = generate(name, 64, 7, LARGE)
    assert len(workload.starts) == 64
    assert workload == generate(name, 64, 7, LARGE)
    assert workload.starts != generate(name, 64, 8, LARGE).starts
    names = [one for start in workload.starts for one in ids(start.session)]
    assert len(set(names)) == len(names)
    for start in workload.starts:
        session = start.session
        assert session.turns[0].gap is Gap.START
        for before, turn in zip(session.turns, session.turns[1:], strict=False):
            assert turn.shared_tokens == before.prompt_tokens
            assert before.prompt_tokens + before.output_tokens < turn.prompt_tokens
            assert turn.gap_s >= 0
    for turn in turns(workload):
        assert 0 < turn.prompt_tokens + turn.output_tokens <= LARGEST_CONTEXT


def test_the_kinds_are_what_they_say():
    gaps = {
        name: sorted(
            t.gap_s for t in turns(generate(name, 300, 0, LARGE)) if t.gap is Gap.TOOL and not t.children
        )
        for name in ("swe", "assistant", "orchestration")
    }
    short = gaps["swe"]
    assert sum(gap < 1 for gap in short) / len(short) == pytest.approx(0.86, abs=0.02)
    assert sum(gap < 10 for gap in short) / len(short) == pytest.approx(0.95, abs=0.01)
    assert gaps["assistant"][len(gaps["assistant"]) // 2] == pytest.approx(9.0, rel=0.15)
    assert sum(gaps["orchestration"]) / len(gaps["orchestration"]) == pytest.approx(20.0, rel=0.1)
    people = [t for t in turns(generate("assistant", 300, 0, LARGE)) if t.gap is Gap.HUMAN]
    assert len(people) / len(turns(generate("assistant", 300, 0, LARGE))) == pytest.approx(1 / 6, abs=0.03)


def test_groups_share_their_prompt_and_bursts_come_in_bursts():
    groups = generate("rl-group", 20, 0, LARGE).starts
    assert [start.group for start in groups] == [f"rl-group-{n // 8}" for n in range(20)]
    assert (
        len({(s.session.model, s.session.system_tokens, s.session.turns[0].prompt_tokens) for s in groups})
        == 3
    )
    bursts = generate("burst", 20, 0, LARGE).starts
    assert sorted({int(start.at // 30) for start in bursts}) == [0, 1, 2, 3]


def test_recorded_agents_are_stretches_of_sessions():
    workload = packaged(None, 0, Cut(), LARGE)
    assert len(workload.starts) == 96
    assert workload.notes == ()
    assert workload.starts == packaged(96, 0, Cut(), LARGE).starts
    assert workload.starts != packaged(96, 1, Cut(), LARGE).starts
    assert max(len(start.session.turns) for start in workload.starts) == 16
    assert max(turn.gap_s for turn in turns(workload)) == 60.0
    longer = packaged(4, 0, Cut(turns=3, longest_gap_s=1e9), LARGE)
    assert {len(start.session.turns) for start in longer.starts} == {3}


@pytest.mark.parametrize("make", [lambda m: packaged(40, 0, Cut(), m), lambda m: generate("swe", 40, 0, m)])
def test_where_engines_are_small_everything_shrinks_and_that_is_said(make):
    workload = make(SMALL)
    assert max(turn.prompt_tokens + turn.output_tokens for turn in turns(workload)) <= SMALL.longest
    assert "0.0512 times" in workload.notes[0]
    result = Study(workload=workload, machines=SMALL, signals=Signals.EXPLICIT, seed=0).run(
        "p", make_policy("passthrough")
    )
    assert result.details["failed_calls"] == 0
    assert result.details["calls"] == len(turns(workload))


def trace(path, *ids_, requests=None):
    requests = requests or [
        {"t": 0, "in": 100, "out": 10, "hash_ids": [1]},
        {"t": 9, "in": 150, "out": 10, "hash_ids": [1, 2], "think_time": 300.0},
    ]
    path.write_text("".join(json.dumps({"id": one, "requests": requests}) + "\n" for one in ids_))
    return path


def test_traces_are_replayed_as_they_are(tmp_path):
    files = [trace(tmp_path / "a.jsonl", "s", "t"), trace(tmp_path / "b.jsonl", "s")]
    workload = from_files(files, None, 0, Cut())
    assert workload.name == "a.jsonl+b.jsonl"
    assert len({start.session.id for start in workload.starts}) == 3
    assert [turn.gap_s for turn in workload.starts[0].session.turns] == [0.0, 300.0]
    result = Study(workload=workload, machines=machines(), signals=Signals.EXPLICIT, seed=0).run(
        "p", make_policy("passthrough")
    )
    assert result.row["makespan_s"] > 300
    assert (result.row["programs"], result.details["calls"]) == (3, 6)
    assert len(from_files(files, 7, 0, Cut(turns=1)).starts) == 7


def test_what_a_trace_lacks_is_said(tmp_path):
    odd = trace(
        tmp_path / "odd.jsonl",
        "s",
        requests=[{"t": 0, "in": 10, "out": 5, "hash_ids": []}, {"t": 1, "in": 0, "out": 5, "hash_ids": []}],
    )
    assert from_files([odd], None, 0, Cut()).notes == ("left out: 1 × turn without a prompt",)
    (tmp_path / "bad.jsonl").write_text('{"id": "s", "requests": [{"in": -1, "out": 1, "hash_ids": []}]}\n')
    with pytest.raises(TraceError, match=r"bad.jsonl, line 1, request 0: 'in' is negative"):
        from_files([tmp_path / "bad.jsonl"], None, 0, Cut())
