"""The scheduler in virtual time: what is served when, and what the memory was spent on."""

from __future__ import annotations

import pytest

from tests.simulation.sessions import PLAIN, growing, machines, session, starts, turn
from thunder_server.core import POLICIES, CapSettings, PaperSettings, make_policy
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.results import details, outcome_row
from thunder_server.simulation.simulator import Simulator, Standstill, Start
from thunder_server.simulation.timeline import Timeline


def run(sessions, policy="passthrough", *, kv=1600, replicas=1, signals=Signals.EXPLICIT):
    made = make_policy(policy) if isinstance(policy, str) else policy
    return Simulator(starts(sessions), machines(kv, replicas), policy=made, signals=signals, check=True).run()


def crowd(programs=12):
    return [growing(f"s{n}", 3 + n % 4, gap=3.0 + n % 3) for n in range(programs)]


# --- one program


def test_a_call_takes_what_the_time_model_says():
    outcome = run([session("s", turn(100, 11))])
    # One step for 100 tokens (1 + 10 s) brings the first token, ten more the others.
    (call,) = outcome.served
    assert (call.first_token_s, call.total_s, call.wait_s) == (11.0, 21.0, 0.0)
    assert outcome.makespan_s == 21.0
    assert PLAIN.call_seconds(100, 100, 11) == 21.0
    assert details(outcome)["slowdown"]["max"] == 1.0


def test_gaps_lie_between_answer_and_request_and_prefixes_are_found():
    outcome = run([session("s", turn(100, 11), turn(200, 1, shared=100, gap=30.0))])
    second = outcome.served[1]
    # 110 tokens of the first turn are in the cache (the last one's KV is never computed); 90 are new.
    assert (second.known_tokens, second.cached_tokens) == (110, 110)
    assert outcome.makespan_s == 21.0 + 30.0 + 1.0 + 9.0


def test_memory_is_accounted_for_step_by_step():
    outcome = run([session("s", turn(100, 11), turn(200, 1, shared=100, gap=30.0))])
    (cost,) = outcome.costs
    # The second prefill holds 200 tokens for 10 s; the first one 100 for 11 s.
    assert cost.prefill == 100 * 11 + 200 * 10
    assert cost.decode == sum(100 + n for n in range(1, 11))
    assert cost.caching == 30 * 111
    assert (cost.recompute, cost.unused) == (0, 0)


def test_what_was_evicted_is_recomputed():
    big = session("big", turn(799, 1))
    back = session("back", turn(100, 1), turn(200, 1, shared=100, gap=200.0))
    outcome = Simulator(
        [Start(session=back), Start(session=big, at=50.0)], machines(800), policy=make_policy("passthrough")
    ).run()
    again = outcome.served[-1]
    assert (again.known_tokens, again.cached_tokens, again.recomputed_tokens) == (100, 0, 100)
    # 200 tokens in two chunks: the first is all known, the second all new.
    assert outcome.costs[0].recompute == 100 * 11
    assert outcome_row(outcome, SETTING)["recomputed_tokens"] == 100


SETTING = {
    "policy": "passthrough",
    "signals": "explicit",
    "workload": "w",
    "seed": 0,
    "programs": 1,
    "replicas": 1,
    "kv_tokens": 1600,
}


def test_a_name_that_is_no_unicode_is_as_good_as_any():
    assert len(run([growing("\ud800", 2)]).served) == 2


def test_sub_agents_run_inside_the_gap():
    child = session("s/child", turn(50, 1))
    parent = session("s", turn(100, 1), turn(120, 1, shared=100, gap=5.0, children=[child]))
    outcome = run([parent])
    assert set(outcome.programs) == {"s", "s/child"}
    last = outcome.served[-1]
    assert last.program_id == "s"
    # The child's six seconds, then the rest of the gap.
    assert last.answered - last.total_s == 11.0 + 6.0 + 5.0
    assert outcome.programs["s"].slowdown == 1.0


def families(number=3):
    """Parents that fill an engine of 1600 tokens while each waits for a child."""
    return [
        session(
            f"p{n}",
            turn(500, 10),
            turn(520, 10, shared=500, gap=5.0, children=[session(f"p{n}/c", turn(400, 10), model="c")]),
        )
        for n in range(number)
    ]


@pytest.mark.parametrize("policy", [*POLICIES, make_policy("cap", CapSettings(programs=1))])
def test_parents_that_fill_the_engine_make_room_for_their_children(policy):
    assert len(run(families(), policy).served) == 9


def test_a_policy_that_stands_still_is_found_out():
    with pytest.raises(Standstill, match=r"stands still from \d+ s on: \d calls wait for room"):
        run(families(), make_policy("paper", PaperSettings(decay=1.0)))


def test_a_call_that_no_engine_takes_ends_its_program():
    outcome = run(
        [session("s", turn(100, 1), turn(2000, 1, shared=100), turn(2100, 1, shared=2000)), growing("t", 2)]
    )
    assert outcome.failed_calls == 1
    assert len(outcome.served) == 3


def test_working_set_is_the_mean_of_contexts():
    outcome = run([session("s", turn(100, 11), turn(200, 1, shared=100, gap=30.0))])
    row = outcome_row(outcome, SETTING)
    assert row["working_set"] == pytest.approx((111 * 51 + 201 * 10) / 61 / 1600, abs=1e-3)


def test_of_a_crowd_only_some_are_at_work_at_a_time():
    made = starts([growing(f"s{n}", 3, gap=3.0) for n in range(6)])
    outcome = Simulator(made, machines(4000), policy=make_policy("passthrough"), at_a_time=2).run()
    runs = [outcome.programs[start.session.id] for start in made]
    assert all(run.ended < float("inf") for run in runs)
    moments = [run.started for run in runs]
    assert max(sum(run.started <= at < run.ended for run in runs) for at in moments) == 2
    # Whoever follows begins the moment that one ends, in the order given.
    assert moments == sorted(moments)
    assert set(moments[2:]) <= {run.ended for run in runs}


# --- many


@pytest.mark.parametrize("signals", list(Signals))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_all_of_it_and_the_same_way_twice(policy, signals):
    sessions = crowd()
    one = run(sessions, policy, kv=800, replicas=2, signals=signals)
    two = run(sessions, policy, kv=800, replicas=2, signals=signals)
    assert len(one.served) == sum(len(each.turns) for each in sessions)
    assert one.served == two.served
    assert outcome_row(one, SETTING) == outcome_row(two, SETTING)
    assert details(one) == details(two)


def test_memory_is_never_spent_twice():
    outcome = run(crowd(), "paper", kv=800, replicas=2)
    for cost in outcome.costs:
        parts = cost.rounded().values()
        assert min(parts) >= 0
        assert sum(parts) <= 800 * outcome.makespan_s + 1


def test_what_several_hold_in_common_takes_memory_once():
    sessions = [session(f"s{n}", turn(210, 60), system=200) for n in range(7)]
    outcome = run(sessions, kv=800)
    (cost,) = outcome.costs
    # Seven times 270 tokens are more than the engine has; without the 200 of the system prompt they are not.
    assert outcome.preemptions == 0
    assert sum(cost.rounded().values()) <= 800 * outcome.makespan_s + 1
    assert cost.decode > 0


def test_memory_that_nobody_may_use_while_somebody_waits_is_unused():
    outcome = run(
        [session("a", turn(100, 50)), session("b", turn(100, 50))],
        make_policy("cap", CapSettings(programs=1)),
    )
    assert outcome.costs[0].unused > 50 * 1400
    assert outcome.served[1].wait_s > 50


def test_those_who_tell_nothing_end_by_their_lease():
    sessions = [session("a", turn(100, 1)), session("b", turn(100, 1))]
    cap = make_policy("cap", CapSettings(programs=1))
    assert run(sessions, cap, signals=Signals.INFERRED).makespan_s > 600
    assert run(sessions, cap).makespan_s < 100


def test_pauses_are_counted_by_program():
    outcome = run(crowd(), "paper", kv=800)
    assert outcome.pauses > 0
    assert outcome.pauses == sum(program.pauses for program in outcome.programs.values())
    assert details(outcome)["evictions_per_program"]["max"] >= 1


def test_what_is_due_at_one_time_happens_in_the_order_it_was_entered():
    timeline, said = Timeline(), []
    timeline.at(2.0, lambda: said.append("third"))
    timeline.at(1.0, lambda: (said.append("first"), timeline.at(0.0, lambda: said.append("second"))))
    timeline.at(3.0, lambda: said.append("never"))
    timeline.run(lambda: len(said) == 3)
    assert (said, timeline.now) == (["first", "second", "third"], 2.0)
