"""``phase`` with ``keep_warm``: whose context an engine is asked to use, so that it drops another one's."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, dispatched, of_type
from thunder_server.core import PhaseSettings, make_policy
from thunder_server.core.decisions import Pause, Touch
from thunder_server.core.events import Outcome
from thunder_server.core.prefix import Chain


def warm(capacity: int | None = 1000) -> Harness:
    h = Harness("phase", PhaseSettings(keep_warm=True), max_wait_s=1e6, auto_lease_s=1e6)
    h.backend("a", capacity)
    return h


def touched(decisions) -> list[str]:
    return [decision.program_id for decision in of_type(decisions, Touch)]


def idle(h: Harness, *programs: str, tokens: int = 200) -> None:
    """Programs act, one since a second later than the one before."""
    for program in programs:
        h.after(1.0).turn(program, tokens)
        h.acting(program, expected_s=10.0)


def test_who_is_older_than_what_has_been_left_is_used_before_a_newcomer_comes():
    h = warm()
    idle(h, "old", "gone", "young", tokens=300)
    h.after(1.0).close("gone", Outcome.SUCCESS)
    call = h.call("new", 300)
    # What `gone` left is older than `young`, and enough.
    assert touched(h.decisions) == ["old"]
    assert h.running(call) == "a"
    kinds = [type(decision).__name__ for decision in h.decisions]
    assert kinds.index("Touch") < len(kinds) - 1 - kinds[::-1].index("Dispatch")
    assert "kept warm" in h.view("old")["reason"]
    assert h.scheduler.counters.touches == 1


def test_used_is_used():
    h = warm()
    idle(h, "old", "gone", tokens=400)
    h.after(1.0).close("gone", Outcome.SUCCESS)
    h.call("new", 300)
    h.call("newer", 250)
    assert touched(h.decisions) == ["old"]


def test_blank_blocks_are_handed_out_first():
    h = warm()
    idle(h, "old", "gone")
    h.close("gone", Outcome.SUCCESS)
    assert h.running(h.call("new", 500)) == "a"
    assert touched(h.decisions) == []


def test_nothing_is_gained_where_nothing_has_been_left_since():
    h = warm()
    idle(h, "gone", "old", tokens=400)
    h.close("gone", Outcome.SUCCESS)
    assert h.running(h.call("new", 500)) == "a"
    assert touched(h.decisions) == []


def test_a_program_whose_context_is_not_there_is_not_used():
    h = warm()
    h.turn("back", 400)
    h.acting("back", expected_s=1e4)
    h.turn("gone", 700)  # for whom the other one made room
    assert h.status("back") == ["paused"]
    h.acted("back")
    h.after(1.0).close("gone", Outcome.SUCCESS)  # it has its place before its call comes
    assert (h.on("back"), h.scheduler.programs["back"].resident) == ("a", 0)
    assert h.running(h.call("new", 500)) == "a"
    assert touched(h.decisions) == []


def test_one_of_whose_prompt_nothing_is_known_is_used_all_the_same():
    h = warm()
    h.finish(h.call("old", 450), None, None)  # the engine told no usage
    h.acting("old", expected_s=10.0)
    idle(h, "gone", tokens=450)
    h.close("gone", Outcome.SUCCESS)
    h.call("new", 500)
    assert touched(h.decisions) == ["old"]


def test_nobody_waits_for_an_idle_program_to_be_back():
    without = Harness("phase", max_wait_s=1e6, auto_lease_s=1e6)
    without.backend("a", 1000)
    for h, runs in ((without, None), (warm(), "a")):
        idle(h, "old", "gone", tokens=450)
        h.close("gone", Outcome.SUCCESS)
        assert h.running(h.call("new", 500)) == runs


def test_room_is_lent_out_for_longer_absences_only():
    h = warm()
    h.scheduler.backends["a"].turnover.learn(seconds=10.0, computed=1000, completion=0)
    h.turn("short", 400)
    h.acting("short", expected_s=9.5)
    h.turn("long", 400)
    h.acting("long", expected_s=10.5)
    h.call("new", 500)
    assert [pause.program_id for pause in of_type(h.decisions, Pause) if pause.backend_id] == ["long"]


def test_an_engine_of_unknown_size_drops_who_knows_what():
    h = warm(None)
    idle(h, "old", "gone")
    h.close("gone", Outcome.SUCCESS)
    h.call("new", 500)
    assert touched(h.decisions) == []


def test_the_prefix_index_hears_of_it():
    h = warm()
    belief = h.scheduler.backends["a"].cache.belief
    chains = [Chain(keys=(number,), ends=(1600,)) for number in range(3)]
    for program, chain in zip(("old", "gone", "young"), chains, strict=True):
        h.after(1.0)
        h.finish(h.call(program, 400, messages=chain), 400)
        h.acting(program, expected_s=10.0)
        if program == "gone":
            h.close(program, Outcome.SUCCESS)
    assert touched(h.decisions) == ["old"]
    assert belief.last_use(chains[0]) > belief.last_use(chains[1])


@pytest.mark.parametrize("settings", [None, PhaseSettings()])
def test_it_is_off_unless_asked_for(settings):
    h = Harness(make_policy("phase", settings), max_wait_s=1e6, auto_lease_s=1e6)
    h.backend("a", 1000)
    idle(h, "old", "gone", "young", tokens=300)
    h.close("gone", Outcome.SUCCESS)
    h.call("new", 300)
    assert touched(h.decisions) == []
    assert dispatched(h.decisions)
