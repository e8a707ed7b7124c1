"""The life of programs: opening, leases, reports of clients, closing, generations."""

from __future__ import annotations

import pytest

from tests.server.core.harness import EMITTER, Harness, of_type
from thunder_server.core.decisions import Cancel, Opened, PhaseChanged, Refusal, Refuse, Terminate
from thunder_server.core.events import ActingStarted, ClientEvent, Event, Outcome, Tick
from thunder_server.core.program import ACTING_BLOCKS, IllegalTransition, Program, State, Step


@pytest.fixture
def h() -> Harness:
    h = Harness("passthrough")
    h.backend("a")
    return h


# --- opening


def test_a_put_opens_or_merges(h):
    opened = h.put("p", name="solver", tags=["x", "y"], metadata={"k": 1}, lease_s=20.0, priority=2)
    assert of_type(opened, Opened)
    assert h.put("p", group="g", priority=None, parent_id="root", unheard_of=1) == []
    view = h.view("p")
    assert (view["name"], view["tags"], view["metadata"]) == ("solver", ["x", "y"], {"k": 1})
    assert view["group"] == "g"
    assert (view["priority"], view["parent_id"], view["lease_s"]) == (2, "root", 20.0)
    assert (view["status"], view["phase"], view["backend"]) == ("active", "acting", None)


def test_a_call_opens_and_brings_what_its_headers_say(h):
    h.call("p", parent_id="root", group="g", priority=3)
    h.call("p")
    view = h.view("p")
    assert (view["parent_id"], view["group"], view["priority"]) == ("root", "g", 3)


def test_an_event_opens(h):
    assert of_type(h.heartbeat("p"), Opened)
    assert h.view("p")["lease_s"] == 600.0


# --- leases


@pytest.mark.parametrize(
    ("open_it", "lease"),
    [
        (lambda h: h.put("p"), 60.0),
        (lambda h: h.put("p", lease_s=5.0), 5.0),
        (lambda h: h.heartbeat("p"), 600.0),
        (lambda h: h.turn("p", 10), 600.0),
    ],
)
def test_silence_ends_a_program_after_its_lease(h, open_it, lease):
    open_it(h)
    assert h.view("p")["lease_left_s"] == lease
    assert of_type(h.run_to(lease - 0.5), Terminate) == []
    assert h.view("p")["lease_left_s"] == 0.5
    (terminate,) = of_type(h.run_to(lease), Terminate)
    assert terminate.outcome is Outcome.LEASE_EXPIRED
    view = h.view("p")
    assert (view["status"], view["outcome"], view["lease_left_s"]) == ("terminated", "lease_expired", 0.0)


def test_any_sign_of_life_renews_the_lease(h):
    h.put("p", lease_s=10.0)
    for sign in (h.heartbeat, h.acting, h.acted, h.put, lambda p: h.turn(p, 10)):
        h.run_to(h.now + 9.0)
        sign("p")
    assert h.view("p")["lease_left_s"] == 10.0


def test_a_lease_never_runs_out_during_a_call(h):
    h.put("p", lease_s=10.0)
    h.put("waiting", lease_s=10.0)
    h.report("a", models=frozenset({"m"}))
    call = h.call("p", model="m")
    h.run_to(500.0)
    assert h.status("p") == ["active"]
    assert h.view("p")["lease_left_s"] == 10.0
    h.finish(call)
    assert h.scheduler.next_deadline() == 510.0


def test_a_later_put_replaces_the_lease(h):
    h.turn("p", 10)
    h.put("p", lease_s=2.0)
    assert h.scheduler.next_deadline() == 2.0
    assert of_type(h.run_to(2.0), Terminate)


def test_a_call_after_the_lease_opens_the_next_generation_even_if_nobody_woke_us(h):
    h.put("p", lease_s=2.0)
    h.after(5.0).call("p")
    assert h.view("p")["generation"] == 2
    assert [t.outcome for t in of_type(h.decisions, Terminate)] == [Outcome.LEASE_EXPIRED]


# --- what clients report


def test_acting_blocks(h):
    h.turn("p", 10)
    said = h.acting("p", "t1", "bash", expected_s=3.0)
    assert [(d.phase, d.tool) for d in of_type(said, PhaseChanged)] == [("acting", "bash")]
    h.acting("p", "t2", "python")
    h.after(2.0)
    assert h.view("p")["acting"] == [
        {"call_id": "t1", "tool": "bash", "since_s": 2.0, "expected_s": 3.0},
        {"call_id": "t2", "tool": "python", "since_s": 2.0, "expected_s": None},
    ]
    h.acted("p", "t1")
    assert h.view("p")["expects_call"] is False, "one still runs"
    h.acted("p", "t2")
    assert h.view("p")["expects_call"] is True
    h.acted("p", "never-started")
    call = h.call("p")
    assert h.view("p")["expects_call"] is False
    h.finish(call)
    assert h.view("p")["expects_call"] is False
    h.acting("p")
    h.acted("p")
    h.close("p", Outcome.SUCCESS)
    assert h.view("p")["expects_call"] is False, "nothing is expected of the ended"


def test_a_tool_that_runs_beside_a_call_leaves_the_program_reasoning(h):
    h.call("p")
    said = h.acting("p")
    assert [d.phase for d in of_type(said, PhaseChanged)] == ["reasoning"]


def test_blocks_that_never_end_are_bounded(h):
    for n in range(ACTING_BLOCKS + 3):
        h.scheduler.handle(_acting(n))
    acting = h.view("p")["acting"]
    assert len(acting) == ACTING_BLOCKS
    assert acting[0]["call_id"] == "t3"


def _acting(n):
    return ActingStarted(
        at=0.0, program_id="p", emitter=EMITTER, seq=n, client_at=0.0, call_id=f"t{n}", tool="bash"
    )


def test_old_and_repeated_events_are_ignored(h):
    h.acting("p", "t1", seq=5)
    h.acting("p", "t2", seq=5)
    h.acting("p", "t3", seq=4)
    h.acting("p", "t4", seq=1, emitter="another")
    assert [block["call_id"] for block in h.view("p")["acting"]] == ["t1", "t4"]


def test_events_for_a_closed_program_are_ignored(h):
    h.call("p")
    h.close("p", Outcome.SUCCESS)
    assert h.acting("p") == []
    h.close("p", Outcome.DROPPED)
    assert h.heartbeat("p") == []
    assert (h.status("p"), h.view("p")["generation"]) == (["terminated"], 1)


def test_resources(h):
    h.declare("p", "container", "c1", host="h1")
    h.declare("p", "directory", "/tmp/x", keep=True)
    h.declare("p", "container", "c1", host="h2")
    h.release("p", "container", "c1", host="h1")
    h.release("p", "container", "never-declared")
    assert h.view("p")["resources"] == [
        {"kind": "container", "ref": "c1", "host": "h1", "keep": False, "state": "released"},
        {"kind": "directory", "ref": "/tmp/x", "host": None, "keep": True, "state": "declared"},
        {"kind": "container", "ref": "c1", "host": "h2", "keep": False, "state": "declared"},
    ]


# --- closing


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.ERROR])
def test_closing_lets_calls_finish(h, outcome):
    call = h.call("p")
    assert of_type(h.close("p", outcome), Terminate) == []
    assert (h.view("p")["closing"], h.view("p")["outcome"]) == (True, None)
    h.close("p", Outcome.SUCCESS)
    (terminate,) = of_type(h.finish(call), Terminate)
    assert terminate.outcome is outcome, "the first close wins"
    assert (h.view("p")["closing"], h.view("p")["outcome"]) == (False, outcome.value)


def test_a_closing_program_keeps_its_place_in_the_queue():
    h = Harness("paper")
    h.backend("a", 1000)
    filler = h.call("filler", 1000)
    call = h.call("p", 500)
    h.close("p", Outcome.SUCCESS)
    h.finish(filler, 100)
    assert h.running(call) == "a"


def test_dropping_ends_calls_at_once():
    h = Harness("paper")
    h.backend("a", 1000)
    running = h.call("p", 900)
    h.report("a", 500)
    h.call("other", 400)
    h.report("a", 450)
    waiting = h.call("p", 900, model="unserved", max_wait_s=None)
    said = h.close("p", Outcome.DROPPED)
    ended = {d.call_id: (type(d), d.refusal) for d in of_type(said, Refuse, Cancel)}
    assert ended[running] == (Cancel, Refusal.PROGRAM_TERMINATED)
    assert waiting in ended or h.scheduler.call(waiting) is None
    assert h.view("p")["outcome"] == "dropped"
    assert h.view("p")["calls"]["cancelled"] == 2


def test_dropping_refuses_what_waits():
    h = Harness("paper")
    h.backend("a", 100)
    h.call("filler", 100)
    waiting = h.call("p", 50)
    (refuse,) = of_type(h.close("p", Outcome.DROPPED), Refuse)
    assert (refuse.call_id, refuse.refusal) == (waiting, Refusal.PROGRAM_TERMINATED)


def test_dropping_cuts_short_what_closing_lets_finish(h):
    call = h.call("p")
    h.close("p", Outcome.SUCCESS)
    said = h.close("p", Outcome.DROPPED)
    assert [d.call_id for d in of_type(said, Cancel)] == [call]
    assert h.view("p")["outcome"] == "dropped"


def test_closing_the_unknown_or_the_ended_does_nothing(h):
    assert h.close("unheard-of", Outcome.SUCCESS) == []
    h.put("p")
    assert of_type(h.close("p", Outcome.ERROR), Terminate)
    assert h.close("p", Outcome.DROPPED) == []
    assert h.view("p")["outcome"] == "error"


def test_closing_an_earlier_generation_does_nothing_to_a_later_one(h):
    h.put("p")
    h.close("p", Outcome.SUCCESS)
    h.put("p")
    assert h.close("p", Outcome.SUCCESS, generation=1) == []
    assert of_type(h.close("p", Outcome.SUCCESS, generation=2), Terminate)


# --- generations


def test_a_call_or_a_put_after_the_end_opens_the_next_generation(h):
    h.put("p", name="old")
    h.close("p", Outcome.SUCCESS)
    h.call("p")
    assert (h.view("p")["generation"], h.view("p")["name"]) == (2, None)
    h.close("p", Outcome.DROPPED)
    h.put("p")
    assert h.view("p")["generation"] == 3


def test_the_next_generation_runs_while_the_one_before_finishes(h):
    old = h.call("p")
    h.close("p", Outcome.SUCCESS)
    new = h.call("p")
    assert (h.running(old), h.running(new)) == ("a", "a")
    said = h.finish(old)
    assert [t.generation for t in of_type(said, Terminate)] == [1]
    assert (h.view("p")["generation"], h.status("p")) == (2, ["active"])
    h.finish(new)
    assert h.scheduler.next_deadline() == 600.0


def test_the_terminated_stay_known_for_ten_minutes(h):
    h.put("p")
    h.close("p", Outcome.SUCCESS)
    h.run_to(599.0)
    assert h.status("p") == ["terminated"]
    h.run_to(600.0)
    assert h.scheduler.program("p") is None
    assert h.scheduler.why("p", h.now) is None
    h.put("p")
    assert h.view("p")["generation"] == 1


def test_two_thousand_programs_left_in_every_way_leave_nothing():
    h = Harness("paper")
    h.handle = h.scheduler.handle
    h.backend("a", 20_000)
    h.backend("b", 20_000)
    for n in range(2000):
        h.after(0.01)
        call = h.call(f"p{n}", 50 + n % 200, final=n % 11 == 0, max_wait_s=20.0)
        match n % 5:
            case 0 if h.scheduler.call(call):
                h.finish(call, 50)
            case 1:
                h.close(f"p{n}", Outcome.DROPPED)
            case 2:
                h.close(f"p{n}", Outcome.SUCCESS)
                h.close(f"p{n}", Outcome.SUCCESS)
                h.call(f"p{n}", 10)
            case _:
                pass
    while h.scheduler.waiting_calls or any(b.running for b in h.scheduler.backends.values()):
        for backend in h.scheduler.backends.values():
            for call in list(backend.calls):
                h.finish(call.id, 50)
        h.run_to(h.now + 1.0)
    h.scheduler.check_invariants()
    h.run_to(h.now + 1300.0)
    h.scheduler.check_invariants()
    assert not h.scheduler.programs
    assert h.scheduler.next_deadline() is None
    assert all(h.used(b) == 0 for b in "ab")


# --- the table


def test_a_step_that_is_not_in_the_table_tells_the_programs_story(h):
    h.turn("p", 10)
    program = h.scheduler.program("p")
    with pytest.raises(IllegalTransition, match="placed on a") as caught:
        program.take(Step.LIFT)
    assert "p (generation 1) is placed, from where there is no LIFT" in str(caught.value)


def test_from_the_end_no_step_leads_anywhere():
    program = Program(id="p", generation=1, opened_at=0.0, lease_s=1.0, state=State.ENDED)
    for step in Step:
        with pytest.raises(IllegalTransition, match="its story: none"):
            program.take(step)


def test_events_of_no_known_kind_are_bugs(h):
    with pytest.raises(TypeError, match="Event is no event"):
        h.scheduler.handle(Event(at=0.0))
    with pytest.raises(TypeError, match="ClientEvent is none of the events"):
        h.client(ClientEvent, "p")


def test_a_tick_is_always_harmless(h):
    assert h.handle(Tick(at=0.0)) == []
