"""A run in figures, against the same figures by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thunder_server.demo import costs, measures
from thunder_server.demo.costs import Pace, fit_pace
from thunder_server.demo.records import Called
from thunder_server.demo.timeline import Activity, draw
from thunder_server.simulation.results import percentile

from .samples import BACKENDS, START, a_run, call

FIELDS = {
    "policy", "signals", "workload", "seed", "programs", "replicas", "kv_tokens", "working_set", "makespan_s",
    "steps_per_min", "output_tokens_per_s", "hit_rate", "recomputed_tokens", "wait_s", "pauses", "restores",
    "moves", "cost_token_s",
}  # fmt: skip


LANES = {lane.program: lane for lane in draw(a_run())}


class TestRow:
    def test_has_the_fields_of_all_benchmarks(self) -> None:
        row = measures.measure(a_run()).row
        assert row.keys() == FIELDS
        assert row["wait_s"].keys() == {"p50", "p95", "p99", "max"}
        assert row["cost_token_s"].keys() == {"decode", "prefill", "recompute", "unused", "caching"}

    def test_figures(self) -> None:
        row = measures.measure(a_run()).row
        assert row["makespan_s"] == 10
        assert row["programs"] == 3
        assert row["steps_per_min"] == 24
        assert row["output_tokens_per_s"] == 40
        assert row["hit_rate"] == 0.2
        assert row["recomputed_tokens"] == 15 * 64 - 320
        assert row["wait_s"] == {"p50": 0.0, "p95": 1.0, "p99": 1.0, "max": 1.0}
        assert (row["pauses"], row["restores"], row["moves"]) == (1, 1, 1)

    def test_working_set_is_contexts_over_time(self) -> None:
        # a: 1000 for 2 s, 1100 for 2 s, 2000 for 4 s; b: 1000 for 6 s, 1100 for 1 s; c: 500 for 2 s.
        tokens = 1000 * 2 + 1100 * 2 + 2000 * 4 + 1000 * 6 + 1100 + 500 * 2
        assert measures.working_set(a_run()) == pytest.approx(tokens / 10)
        assert measures.measure(a_run()).row["working_set"] == pytest.approx(tokens / 10 / 8000, abs=1e-3)

    def test_engines_without_figures(self) -> None:
        run = a_run()
        run.cache = None
        assert measures.hit_rate(run) == pytest.approx(320 / 4500, abs=1e-4)
        run.records = [
            replace(record, cached_tokens=None) if isinstance(record, Called) else record
            for record in run.records
        ]
        row = measures.measure(run).row
        assert (row["hit_rate"], row["recomputed_tokens"], row["cost_token_s"]) == (None, None, None)

    def test_recomputed_from_the_engines_total(self) -> None:
        run = a_run()
        run.records = [
            replace(record, cached_tokens=None) if isinstance(record, Called) else record
            for record in run.records
        ]
        assert measures.recomputed(run) == 15 * 64 - 900

    def test_a_run_without_calls(self) -> None:
        run = a_run()
        run.records = [record for record in run.records if not isinstance(record, Called)]
        row = measures.measure(run).row
        assert (row["steps_per_min"], row["working_set"], row["cost_token_s"]) == (0, 0, None)

    @pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
    def test_percentiles(self, share: float, value: int) -> None:
        assert percentile(list(range(1, 101)), share) == value


class TestTimeline:
    def test_one_lane_a_program(self) -> None:
        assert list(LANES) == ["a", "b", "c"]
        assert LANES["c"].parent == "b"
        assert (LANES["c"].opened, LANES["c"].closed) == (1, 3)

    def test_segments_follow_each_other(self) -> None:
        assert [(one.start, one.end, one.activity, one.backend) for one in LANES["a"].segments] == [
            (0, 2, Activity.REASONING, 0),
            (2, 4, Activity.ACTING, 0),
            (4, 5, Activity.WAITING, None),
            (5, 8, Activity.REASONING, 0),
        ]

    def test_pauses_come_from_the_servers_stream(self) -> None:
        assert LANES["a"].paused == [(3, 5)]
        assert LANES["b"].paused == []

    def test_a_call_is_held_until_the_server_sends_it_on(self) -> None:
        run = a_run()
        for at in (0, 5.5, 20):
            run.transitions.append({"id": 9, "at": START + at, "type": "call.dispatched", "program_id": "a"})
        assert [(one.start, one.end) for one in draw(run)[0].segments[2:]] == [(4, 5.5), (5.5, 8)]

    def test_a_pause_without_an_end_lasts_as_long_as_the_program(self) -> None:
        run = a_run()
        run.transitions = run.transitions[:1]
        assert draw(run)[0].paused == [(3, 8)]

    def test_an_unknown_backend_is_no_place(self) -> None:
        run = a_run()
        run.backends = BACKENDS[1:]
        assert draw(run)[0].segments[0].backend is None


class TestCosts:
    def test_pace_is_fitted(self) -> None:
        pace = Pace(prefill=0.001, decode=0.01)
        calls = [
            call("p", 0, pace.prefill * (n - c) + pace.decode * o, prompt_tokens=n, cached_tokens=c,
                 completion_tokens=o)
            for n, c, o in ((1000, 0, 10), (2000, 1500, 300), (5000, 100, 50))
        ]  # fmt: skip
        fitted = fit_pace(calls)
        assert fitted.prefill == pytest.approx(pace.prefill)
        assert fitted.decode == pytest.approx(pace.decode)

    def test_pace_is_never_negative(self) -> None:
        calls = [
            call("p", 0, seconds, prompt_tokens=n, completion_tokens=o)
            for n, o, seconds in ((1000, 100, 5.0), (2000, 100, 1.0), (3000, 300, 9.0))
        ]
        fitted = fit_pace(calls)
        assert fitted.prefill >= 0
        assert fitted.decode >= 0

    def test_memory_is_accounted_for_while_it_is_short(self) -> None:
        run = a_run()
        cost = costs.measure(draw(run), capacities=[1000, 1000], block_size=64, makespan=10)
        assert cost is not None
        total = cost.decode + cost.prefill + cost.recompute + cost.unused + cost.caching
        assert 0 < total <= 2000 * 10
        assert cost.recompute > 0

    def test_unused_is_what_lies_idle_while_somebody_waits(self) -> None:
        cost = costs.measure(draw(a_run()), capacities=[4000, 4000], block_size=64, makespan=10)
        assert cost is not None
        # From 4 to 5 s, a's call is held back; engine 1 is empty and engine 2 runs b's call.
        assert cost.unused == pytest.approx(4000 + 4000 - 1050)

    def test_a_paused_program_holds_nothing(self) -> None:
        cost = costs.measure(draw(a_run()), capacities=[4000, 4000], block_size=64, makespan=10)
        assert cost is not None
        assert cost.caching == pytest.approx(1100)  # from 2 to 3 s, not from 3 to 4
