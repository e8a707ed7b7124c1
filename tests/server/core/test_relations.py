"""Parents, children and groups: who holds up whom."""

from __future__ import annotations

from tests.server.core.harness import Harness, dispatched, of_type
from thunder_server.core.decisions import Restore
from thunder_server.core.events import Outcome


def harness(capacity: int = 1000) -> Harness:
    h = Harness("phase", max_wait_s=1e6, auto_lease_s=1e6)
    h.backend("a", capacity)
    return h


def holding_up(h: Harness, *programs: str) -> list[bool]:
    return [h.scheduler.program(program).holds_up_others for program in programs]


def test_the_last_of_a_group_hold_it_up():
    h = harness()
    names = [f"p{n}" for n in range(8)]
    for name in names:
        h.put(name, group="g")
    for name in names[:5]:
        h.close(name, Outcome.SUCCESS)
    assert not any(holding_up(h, *names[5:]))
    h.close("p5", Outcome.SUCCESS)
    assert holding_up(h, "p6", "p7") == [True, True]
    h.put("p8", group="g")
    assert holding_up(h, "p6", "p7", "p8") == [False] * 3
    h.put("p8", group="other")
    assert holding_up(h, "p6", "p7", "p8") == [True, True, False]
    for name in ("p6", "p7", "p8"):
        h.close(name, Outcome.SUCCESS)
    h.put("p9", group="g")
    assert holding_up(h, "p9") == [False]


def test_a_child_holds_up_its_parent_while_both_live():
    h = harness()
    h.put("parent")
    h.put("child", parent_id="parent")
    h.put("stranger", parent_id="nobody")
    h.put("narcissus", parent_id="narcissus")
    assert holding_up(h, "parent", "child", "stranger", "narcissus") == [False, True, False, False]
    h.put("other")
    h.put("child", parent_id="other")
    h.close("parent", Outcome.SUCCESS)
    assert holding_up(h, "child") == [True]
    h.close("other", Outcome.SUCCESS)
    assert holding_up(h, "child") == [False]
    h.put("orphan", parent_id="parent")
    assert holding_up(h, "orphan") == [False]


def test_who_holds_up_others_goes_first():
    h = harness()
    h.put("parent")
    h.call("full", 1000)
    h.call("p", 1000)
    h.after(1.0)
    h.put("child", parent_id="parent")
    h.call("child", 1000)
    said = h.close("full", Outcome.DROPPED)
    assert [decision.program_id for decision in of_type(said, Restore)] == ["child"]


def test_a_parent_gives_way_to_its_child():
    """It cannot be back any sooner, however short it said its tool would be."""
    h = harness()
    h.turn("parent", 800)
    h.acting("parent", expected_s=1.0)
    h.put("child", parent_id="parent")
    call = h.call("child", 800)
    assert dispatched(h.run_to(2.0)) == [call] or h.running(call) == "a"
    assert h.status("parent") == ["paused"]
