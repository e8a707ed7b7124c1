"""Whether a scheduler is worth it: repeats, working set, gain, and the verdict."""

from __future__ import annotations

import json

import pytest

from tests.simulation.sessions import growing, machines, session, turn
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines, Start
from thunder_server.simulation.study import Study, Workload
from thunder_server.simulation.traffic import Call, Source, Traffic
from thunder_server.simulation.worth import Verdict, Worth, judge, over_time, repeated, weigh


def study(traffic: Traffic, on: Machines) -> Study:
    workload = Workload(name="t", starts=traffic.starts)
    return Study(workload=workload, machines=on, signals=Signals.EXPLICIT, seed=0)


def judged(*sessions, kv: int = 1600) -> Worth:
    traffic = Traffic(source=Source.TRACE, starts=tuple(Start(session=one) for one in sessions))
    return weigh(traffic, study(traffic, machines(kv)))


def test_prompts_that_never_repeat_are_no_case_for_a_scheduler():
    worth = judged(*(session(f"s{n}", turn(300), turn(300, gap=2.0)) for n in range(6)))
    assert (worth.repeat_rate, worth.verdict) == (0.0, Verdict.DO_NOT_BOTHER)
    assert "only 0% of the prompt tokens" in worth.reason


def test_what_fits_is_no_case_either():
    worth = judged(growing("a", 4), growing("b", 4), kv=4000)
    assert worth.verdict is Verdict.DO_NOT_BOTHER
    assert "everything fits" in worth.reason
    assert worth.working_set.peak == 2 * 230
    assert worth.explicit.makespan == worth.inferred.makespan == 1.0


def test_a_crowd_of_growing_contexts_is():
    worth = judged(*(growing(f"s{n}", 12, step=60, gap=8.0) for n in range(12)), kv=3000)
    assert worth.verdict in (Verdict.WORTH_IT, Verdict.MAYBE)
    assert worth.explicit.makespan > 1.05
    assert worth.working_set.peak > 3000
    assert [row["policy"] for row in worth.rows] == ["passthrough", "phase", "phase"]
    assert json.loads(json.dumps(worth.to_json()))["verdict"] == worth.verdict.value


def test_recorded_times_tell_the_working_set():
    calls = {
        name: [Call(at=at, ended=at + 10, prompt_tokens=90, output_tokens=10, cached_tokens=45)]
        for name, at in (("a", 100.0), ("b", 105.0))
    }
    starts = tuple(Start(session=session(name, turn(90)), at=at) for name, at in (("a", 0.0), ("b", 5.0)))
    traffic = Traffic(source=Source.LOG, starts=starts, calls=calls)
    worth = weigh(traffic, study(traffic, machines()))
    assert (worth.working_set.peak, round(worth.working_set.mean, 1)) == (200, 133.3)
    assert worth.hit_rate == 0.5


def test_repeats_are_a_programs_own_and_its_familys():
    own = session("a", turn(100, 20), turn(200, 20, shared=100))
    assert repeated([own]) == 120 / 300  # the answer comes back with the prompt
    family = [session(name, turn(100), system=80) for name in "ab"]
    assert repeated(family) == 80 / 200
    assert repeated(family, known=150) == 150 / 200
    compacted = session("c", turn(200, 20), turn(100, 20, shared=50))
    assert repeated([compacted]) == 50 / 300


def test_children_count_as_programs_of_their_own():
    child = session("c", turn(100), turn(150, shared=100))
    worth = judged(session("p", turn(100), turn(200, shared=100, children=[child])), kv=4000)
    assert (worth.programs, worth.calls) == (1, 4)


@pytest.mark.parametrize(
    ("repeat", "peak", "gain", "verdict"),
    [
        (0.1, 900, 2.0, Verdict.DO_NOT_BOTHER),
        (0.9, 90, 2.0, Verdict.DO_NOT_BOTHER),
        (0.9, 900, 1.04, Verdict.DO_NOT_BOTHER),
        (0.9, 900, 1.1, Verdict.MAYBE),
        (0.9, 900, 1.5, Verdict.WORTH_IT),
    ],
)
def test_the_first_no_settles_it(repeat, peak, gain, verdict):
    working_set = over_time([[(0.0, peak), (1.0, 0)]])
    assert judge(repeat, working_set, 100, gain)[0] is verdict


def test_the_working_set_over_time_misses_no_peak():
    spans = [[(float(n), 10), (n + 0.5, 0)] for n in range(1000)] + [[(500.1, 500), (500.2, 0)]]
    working_set = over_time(spans)
    assert working_set.peak == max(tokens for _, tokens in working_set.over_time) == 510
    assert working_set.p95 == 10
    assert len(working_set.over_time) == 120
    assert over_time([]).peak == 0
