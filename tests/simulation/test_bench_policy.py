"""``make bench-policy``: its verdicts, and that a small one of its runs goes through."""

from __future__ import annotations

import pytest

from benchmarks.policy.ablation import RULES, WORKS, Ablated
from benchmarks.policy.best_cap import best_cap
from benchmarks.policy.tables import costs, figures, judgement
from benchmarks.policy.targets import CAP, ORACLE, PAPER, PHASE, ratios, spread, verdicts
from benchmarks.policy.work import Job, Load, run_all
from thunder_server.core import make_policy
from thunder_server.simulation.replay import Signals


def row(makespan, *, wait=1.0, pauses=0, slowest=2.0):
    return {
        "makespan_s": makespan,
        "wait_s": {"p50": 0.0, "p99": wait},
        "pauses": pauses,
        "moves": 0,
        "hit_rate": 0.9,
        "kv_tokens": 1000,
        "replicas": 2,
        "cost_token_s": {"decode": 1, "caching": 2},
        "details": {"slowdown": {"max": slowest}},
    }


def everybody(**of):
    rows = {name: [row(100.0), row(100.0)] for name in ("passthrough", CAP, PAPER, PHASE, ORACLE)}
    return rows | of


def test_ratios_are_by_seed():
    rows = {"a": [row(50.0), row(80.0)], "b": [row(100.0), row(100.0)]}
    assert ratios(rows, "a", "b") == [2.0, 1.25]
    assert spread([2.0, 1.25]) == "1.62 (1.25-2.00)"


def test_equal_is_not_enough_under_load_but_is_when_all_fits():
    assert all(verdict.holds for verdict in verdicts(0.5, everybody()))
    judged = {verdict.target: verdict.holds for verdict in verdicts(1.5, everybody())}
    assert judged["at least 1.05× cap (best)"] is False
    assert judged["within 10 % of the oracle"] is True


def test_pauses_and_longer_waits_are_seen():
    paused = everybody(phase=[row(100.0), row(100.0, pauses=1)])
    assert [v.holds for v in verdicts(0.5, paused) if v.target == "no pauses at all"] == [False]
    late = everybody(phase=[row(40.0, wait=0.5), row(40.0, wait=1.5, slowest=9.0)])
    held = {verdict.target: verdict.holds for verdict in verdicts(2.5, late)}
    assert [target for target, holds in held.items() if not holds] == [
        "p99 wait no longer than paper's, on every seed",
        "nobody starves: slowest program no slower than paper's, on every seed",
    ]


def test_tables_can_be_made():
    rows = everybody()
    assert figures(rows).row_count == costs(rows).row_count == len(rows)
    assert judgement(PHASE, list(verdicts(1.5, rows))).row_count == 6


@pytest.mark.slow
def test_a_small_run_of_everything():
    load = Load(working_set=0.5, live=2)
    (one,) = run_all([Job(load, 0, "phase", make_policy("phase"))], 1)
    assert one["programs"] == 8
    assert best_cap(load, [0], 1)[0]["makespan_s"] == pytest.approx(one["makespan_s"], rel=0.2)


@pytest.mark.slow
def test_a_rule_can_be_left_out():
    assert set(WORKS) == {"recorded", "small engine", "small, some tools slow"}
    assert {rule().name for rule in RULES.values()} == {"phase"}
    assert Ablated("small, some tools slow", "no time slices", 0, Signals.INFERRED).run()["makespan_s"] > 0
