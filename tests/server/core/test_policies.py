"""``passthrough``, ``cap``, and the choice of a policy."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, dispatched, of_type
from thunder_server.core import POLICIES, CapSettings, PaperSettings, make_policy, policy_of_text
from thunder_server.core.decisions import Pause, Restore
from thunder_server.core.events import CallConnectFailed, CallEnd, Outcome


def capped(programs: int = 1) -> Harness:
    h = Harness("cap", CapSettings(programs=programs))
    h.backend("a")
    return h


def test_policies_are_made_of_what_people_write():
    assert [policy_of_text(name).name for name in POLICIES] == list(POLICIES)
    assert policy_of_text("cap:6").settings.programs == 6
    assert policy_of_text("paper:1.5").decay == 1.5
    assert policy_of_text("phase:warm").name == "phase"
    for text in ("stage", "phase:6", "phase:", "cap:", "cap:many", "paper:slow"):
        with pytest.raises(ValueError):
            policy_of_text(text)


def test_policies_are_made_by_name():
    assert [make_policy(name).name for name in POLICIES] == list(POLICIES)
    assert make_policy("cap", CapSettings(programs=3)).settings.programs == 3
    with pytest.raises(ValueError, match="no policy 'stage'; there are passthrough, cap, paper, phase"):
        make_policy("stage")
    with pytest.raises(ValueError, match="CapSettings are not the settings of policy 'paper'"):
        make_policy("paper", CapSettings())
    with pytest.raises(ValueError, match="at least 1"):
        CapSettings(programs=0)
    assert make_policy("paper", PaperSettings(decay=3.0)).decay == 3.0


# --- passthrough


def test_passthrough_spreads_programs_and_is_sticky():
    h = Harness("passthrough")
    h.backend("a", 10)
    h.backend("b", 10)
    for turn in range(3):
        for n in range(6):
            h.finish(h.call(f"p{n}", 500 * turn), 500 * turn)
    assert [h.on(f"p{n}") for n in range(6)] == ["a", "b"] * 3
    assert of_type(h.decisions, Pause) == []


def test_passthrough_queues_for_nothing_but_a_backend():
    h = Harness("passthrough")
    low, high = h.call("low"), h.call("high", priority=1)
    assert h.status("low", "high") == ["paused", "paused"]
    assert dispatched(h.backend("a")) == [high, low]
    assert h.scheduler.why("low", h.now).free_tokens is None


def test_passthrough_queues_for_a_model_that_no_backend_serves_yet():
    h = Harness("passthrough")
    h.backend("a", models=frozenset({"m1"}))
    waiting = [h.call(f"p{n}", model="m2") for n in range(3)]
    served = h.call("other", model="m1")
    assert h.running(served) == "a"
    h.finish(served)
    assert dispatched(h.backend("b", models=frozenset({"m2"}))) == waiting


def test_a_program_that_lost_its_only_call_in_the_queue_waits_for_the_next():
    h = Harness("passthrough")
    h.fail(h.call("p"), CallEnd.CLIENT_GONE)
    h.backend("a")
    assert h.running(h.call("p")) == "a"


# --- cap


def test_a_slot_is_held_from_the_first_call_to_the_end():
    h = capped(2)
    h.turn("p", 10)
    h.turn("q", 10)
    waits = h.call("r")
    assert h.running(waits) is None
    assert h.running(h.call("p")) == "a"
    assert dispatched(h.close("q", Outcome.SUCCESS)) == [waits]


def test_a_lease_frees_the_slot_of_the_silent():
    h = capped()
    h.put("p", lease_s=5.0)
    h.turn("p", 10)
    waits = h.call("q")
    assert dispatched(h.run_to(5.0)) == [waits]


def test_first_come_first_served_within_a_priority():
    h = capped()
    h.call("filler")
    for n, (program, priority) in enumerate([("x", 0), ("y", 0), ("z", 1)]):
        h.now = float(n)
        h.call(program, priority=priority)
    for leaves, follows in (("filler", "z"), ("z", "x"), ("x", "y")):
        said = h.close(leaves, Outcome.DROPPED)
        assert [d.program_id for d in of_type(said, Restore)] == [follows]


def test_slots_are_per_backend():
    h = capped()
    h.backend("b")
    assert [h.running(h.call(p)) for p in ("p", "q", "r")] == ["a", "b", None]


def test_a_call_that_leaves_the_queue_leaves_no_claim_to_a_slot():
    h = capped()
    filler = h.call("filler")
    h.fail(h.call("gone"), CallEnd.CLIENT_GONE)
    waits = h.call("waits")
    h.finish(filler)
    assert dispatched(h.close("filler", Outcome.SUCCESS)) == [waits]
    assert h.status("gone") == ["paused"]
    h.close("waits", Outcome.DROPPED)
    assert h.running(h.call("gone")) == "a"


def test_one_whom_a_backend_refused_does_not_hold_up_the_others():
    h = capped()
    h.backend("b", healthy=False)
    refused = h.call("refused")
    h.report("b")
    h.call("filler")
    h.handle(CallConnectFailed(at=0.0, call_id=refused, backend_id="a"))
    other = h.call("other")
    assert (h.running(refused), h.running(other)) == (None, None)
    assert dispatched(h.report("a")) == [other]


def test_parents_that_wait_for_queued_children_do_not_hold_all_slots():
    h = capped(2)
    for parent in ("p", "q"):
        h.turn(parent, 10)
    first = h.call("p1", parent_id="p")
    assert h.running(first) is None  # q may yet end
    second = h.call("q1", parent_id="q")
    assert (h.running(first), h.running(second)) == ("a", None)
    assert h.status("p", "q") == ["paused", "active"]
    back = h.call("p")  # it waits its turn
    h.finish(first)
    assert dispatched(h.close("p1", Outcome.SUCCESS)) == [second]
    h.finish(second)
    assert dispatched(h.close("q1", Outcome.SUCCESS)) == [back]


def test_cap_knows_nothing_of_memory():
    h = capped(3)
    assert all(h.running(h.call(f"p{n}", 10_000)) == "a" for n in range(3))
    assert h.scheduler.why("p0", h.now).free_tokens is None
    policy, backend = make_policy("cap"), h.scheduler.backends["a"]
    assert not policy.overfull(backend, h.now)
    assert list(policy.tick(h.scheduler.backends, h.now)) == []
