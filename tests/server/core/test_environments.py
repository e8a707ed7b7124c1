"""Environments: prepared before they are needed and not before, hibernated, woken, given up."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness, of_type
from thunder_server.core import CapSettings
from thunder_server.core.decisions import (
    AbandonEnvironment,
    EnvironmentChanged,
    Hibernate,
    PrepareEnvironment,
    Reclaim,
    Restore,
    Wake,
)
from thunder_server.core.environment import EnvironmentState, container_name
from thunder_server.core.events import EnvironmentWanted, Outcome
from thunder_server.core.flow import IMAGES, UNKNOWN_S, PrepareTimes
from thunder_server.core.resource_events import (
    EnvironmentAwaited,
    EnvironmentFailed,
    EnvironmentHibernated,
    EnvironmentPrepared,
    EnvironmentWoken,
    HostServed,
    HostUnserved,
    ProgramRecovered,
    ReclaimEnd,
    ReclaimEnded,
    RecoveredResource,
)
from thunder_server.core.views import environment_view, holding_view

HOST = "box"
WANTED = EnvironmentWanted(image="python:3.12", host=HOST, spec={"image": "python:3.12"})


class Kitchen(Harness):
    """A harness that plays whoever prepares environments; one is ready when the test says so."""

    def __init__(self, policy="phase", settings=None, *, served=True, capacity=1000, **config) -> None:
        super().__init__(policy, settings, **config)
        if served:
            self.handle(HostServed(at=self.now, host=HOST))
        self.backend("a", capacity)

    def open(self, *programs: str, **fields) -> None:
        for program in programs:
            self.put(program, environment=WANTED, **fields)

    def preparing(self) -> list[str]:
        return [decision.program_id for decision in of_type(self.decisions, PrepareEnvironment)]

    def ready(self, program: str, container="c", generation=1, seconds=1.0):
        return self.said(EnvironmentPrepared, program, generation, container_id=container, seconds=seconds)

    def fail(self, program: str, *, retryable=False, reason="no such image"):
        return self.said(EnvironmentFailed, program, reason=reason, retryable=retryable)

    def said(self, event, program: str, generation=1, **kw):
        return self.handle(event(at=self.now, program_id=program, generation=generation, **kw))

    def wait_for(self, program: str):
        return self.handle(EnvironmentAwaited(at=self.now, program_id=program))

    def environment(self, program: str) -> str:
        found = self.scheduler.program(program)
        assert found is not None
        return environment_view(found.environment)["state"]

    def state(self, program: str) -> list[str]:
        return [one["state"] for one in self.view(program)["resources"] if one["kind"] == "environment"]


@pytest.fixture
def h() -> Kitchen:
    return Kitchen()


# --- when


def test_with_room_it_is_prepared_at_once(h):
    h.open("p")
    assert h.state("p") == ["waiting"]
    (prepare,) = of_type(h.run_to(0.05), PrepareEnvironment)
    assert (prepare.host, prepare.spec, prepare.attempt) == (HOST, WANTED.spec, 1)
    assert prepare.name == container_name("p", 1)
    assert h.state("p") == ["preparing"]
    h.ready("p", "c1")
    view = environment_view(h.scheduler.program("p").environment)
    assert (view["state"], view["container_id"], view["image"]) == ("ready", "c1", "python:3.12")
    assert h.state("p") == ["ready"]
    (holding,) = h.scheduler.ledger.holdings
    line = holding_view(holding, h.scheduler.program("p"))
    assert (line["state"], line["reason"], line["attempts"]) == ("ready", "declared", 0)
    assert holding_view(holding, None)["state"] == "declared"
    h.open("p")
    assert h.run_to(10.0) == [], "of several words the first counts, and nothing is left to be done"


def test_of_programs_without_one_nothing_is_said(h):
    h.put("p")
    h.wait_for("p")
    h.wait_for("nobody")
    assert environment_view(h.scheduler.program("p").environment)["state"] is None
    assert h.fail("p") == []


def test_a_program_that_is_placed_has_it_prepared_at_once():
    h = Kitchen(capacity=None)
    call = h.call("p")
    h.open("p")
    assert h.preparing() == ["p"]
    h.finish(call)


def test_newcomers_are_prepared_as_far_as_there_would_be_room():
    h = Kitchen("cap", CapSettings(programs=2))
    h.open("p1", "p2", "p3", "p4")
    h.run_to(5.0)
    assert h.preparing() == ["p1", "p2"]
    for program in ("p1", "p2"):
        h.ready(program)
        h.turn(program, 10)
    h.run_to(10.0)
    assert h.preparing() == ["p1", "p2"], "they have the places now"
    h.close("p1", Outcome.SUCCESS)
    h.run_to(11.0)
    assert h.preparing() == ["p1", "p2", "p3"]


def test_newcomers_count_as_what_programs_are_on_average(h):
    h.turn("large", 400)
    h.open("p1", "p2")
    h.run_to(1.0)
    assert h.preparing() == ["p1"]


def test_nobody_is_promised_a_place_where_none_can_be_used():
    h = Kitchen()
    h.report("a", healthy=False)
    h.open("p")
    h.run_to(3.0)
    assert h.preparing() == []
    for unlimited in (Kitchen(capacity=None), Kitchen("passthrough")):
        unlimited.open(*(f"p{n}" for n in range(20)))
        unlimited.run_to(1.0)
        assert len(unlimited.preparing()) == 8, "at a time"
        unlimited.ready("p0")
        unlimited.run_to(2.0)
        assert len(unlimited.preparing()) == 9


def test_whom_somebody_waits_for_comes_first_and_in_the_end_in_any_case():
    h = Kitchen("cap", CapSettings(programs=1))
    h.turn("holder", 10)
    h.open("p1", "p2", "p3", lease_s=1000.0)
    h.run_to(1.0)
    h.wait_for("p2")
    h.wait_for("p2")
    h.run_to(30.0)
    assert h.preparing() == []
    h.wait_for("p3")
    h.run_to(32.0)
    assert h.preparing() == ["p2"], "one at a time"
    h.run_to(70.0)
    assert h.preparing() == ["p2", "p3"]


def test_whom_somebody_waits_for_is_prepared_where_there_is_no_backend_to_judge_by():
    h = Kitchen()
    h.report("a", healthy=False)
    h.open("p1", "p2")
    h.wait_for("p2")
    h.run_to(1.0)
    assert h.preparing() == ["p2"]


def test_the_first_in_the_queue_is_always_near_its_turn(h):
    h.call("holder", 1000)
    h.open("p1", "p2", lease_s=500.0)
    h.call("p1", 600)
    h.call("p2", 600)
    h.run_to(20.0)
    assert h.preparing() == ["p1"]


def test_others_are_when_room_is_expected_in_the_time_that_preparing_takes(h):
    h.open("seen", lease_s=5000.0)
    h.run_to(1.0)
    h.after(20.0).ready("seen", seconds=10.0)  # it took 10 s, once its turn had come
    for number in range(40):  # 100 tokens come free every second
        h.turn(f"short{number}", 100)
        h.close(f"short{number}", Outcome.SUCCESS)
        h.run_to(h.now + 1.0)
    assert h.scheduler._world.flow.per_second(h.now).tokens == pytest.approx(100, rel=0.1)
    h.call("holder", 1000)
    names = [f"p{n}" for n in range(6)]
    h.open(*names, lease_s=5000.0)
    for name in names:
        h.call(name, 500)
    h.run_to(h.now + 1.0)
    # Each wants 500 tokens, 5 s of what comes free; 16 s ahead are worth preparing for.
    assert h.preparing()[1:] == ["p0", "p1", "p2"]


def test_where_policies_count_programs_these_do_the_same():
    h = Kitchen("cap", CapSettings(programs=1))
    for number in range(30):
        h.turn(f"short{number}", 10)
        h.close(f"short{number}", Outcome.SUCCESS)
        h.run_to(h.now + 30.0)
    h.call("holder")
    names = [f"p{n}" for n in range(5)]
    h.open(*names, lease_s=5000.0)
    for name in names:
        h.call(name)
    h.run_to(h.now + 1.0)
    assert h.preparing() == ["p0", "p1"], "one place in half a minute, and half a minute to prepare"


# --- held until it is there


def test_a_queued_program_is_not_restored_before_its_environment_is_ready(h):
    filler = h.call("filler", 900)
    h.open("p")
    call = h.call("p", 500)
    h.call("q", 600)
    assert h.status("p", "q") == ["paused", "paused"]
    h.run_to(1.0)
    assert h.preparing() == ["p"]
    h.close("filler", Outcome.SUCCESS)
    said = h.finish(filler, 900)
    assert [restore.program_id for restore in of_type(said, Restore)] == ["q"], "others are served meanwhile"
    assert h.running(call) is None
    assert h.scheduler.why("p", h.now).waiting_for.startswith("its environment (preparing")
    h.after(9.0)
    said = h.ready("p")
    assert of_type(said, Restore) == [], "q has the room"
    said = h.close("q", Outcome.DROPPED)
    assert [restore.program_id for restore in of_type(said, Restore)] == ["p"]
    counters = h.scheduler.counters
    assert counters.environments_prepared == 1
    assert counters.prepared_exposed_s == pytest.approx(9.0)
    assert counters.prepared_hidden_s == pytest.approx(0.95)


def test_one_that_is_too_large_for_every_backend_never_waits_for_its_environment_either(h):
    h.call("filler", 900)
    h.open("p")
    h.call("p", 500)
    h.close("filler", Outcome.DROPPED)
    assert h.scheduler.program("p").held
    assert h.running(h.call("p", 3000)) == "a"
    assert not h.scheduler.program("p").held
    h.ready("p")
    assert h.state("p") == ["ready"]


def test_one_whose_turn_comes_before_it_was_begun(h):
    h.call("filler", 900)
    h.open("p")
    h.call("p", 500)
    said = h.close("filler", Outcome.DROPPED)
    assert [prepare.program_id for prepare in of_type(said, PrepareEnvironment)] == ["p"]
    assert of_type(said, Restore) == []
    assert of_type(h.ready("p"), Restore) != []


def test_what_a_client_waits_for_is_not_hidden(h):
    h.open("p")
    h.run_to(0.05)
    h.run_to(4.05)
    h.wait_for("p")
    h.run_to(10.05)
    h.ready("p")
    counters = h.scheduler.counters
    assert (counters.prepared_hidden_s, counters.prepared_exposed_s) == (pytest.approx(4), pytest.approx(6))


# --- what goes wrong


def test_a_failure_costs_no_capacity_and_is_told(h):
    h.call("filler", 900)
    h.open("p")
    h.call("p", 500)
    h.run_to(1.0)
    h.close("filler", Outcome.DROPPED)
    said = h.fail("p", reason="no such image: python:3.12")
    assert of_type(said, Restore) != [], "the program goes on without"
    (changed,) = of_type(said, EnvironmentChanged)
    assert (changed.state, changed.reason) == ("failed", "no such image: python:3.12")
    assert h.scheduler.counters.environments_failed == 1
    assert h.state("p") == ["failed"]
    assert [reclaim.kind for reclaim in of_type(h.close("p", Outcome.DROPPED), Reclaim)] == ["environment"]


def test_what_may_succeed_later_is_tried_again(h):
    h.open("p")
    h.run_to(0.05)
    h.fail("p", retryable=True, reason="the engine is away")
    assert h.state("p") == ["waiting"]
    h.run_to(0.9)
    assert h.preparing() == ["p"]
    h.run_to(1.1)
    assert h.preparing() == ["p", "p"]
    h.fail("p", retryable=True, reason="the engine is away")
    h.run_to(4.0)
    h.fail("p", retryable=True, reason="the engine is away")
    assert h.state("p") == ["failed"]
    h.run_to(20.0)
    assert h.preparing() == ["p", "p", "p"]


def test_a_host_where_nobody_prepares():
    h = Kitchen(served=False)
    h.open("p", lease_s=1000.0)
    h.run_to(29.0)
    assert h.state("p") == ["waiting"]
    h.run_to(31.0)
    assert environment_view(h.scheduler.program("p").environment)["state"] == "failed"
    assert "thunder reaper" in environment_view(h.scheduler.program("p").environment)["reason"]
    late = Kitchen(served=False)
    late.open("p", lease_s=1000.0)
    late.run_to(10.0)
    late.handle(HostServed(at=late.now, host=HOST))
    late.run_to(11.0)
    assert late.preparing() == ["p"]


def test_a_host_that_is_lost_while_it_prepares(h):
    h.open("p", "over", "q", lease_s=1000.0)
    h.put("bystander")
    h.run_to(0.05)
    h.ready("q")
    h.close("over", Outcome.SUCCESS)
    assert h.handle(HostUnserved(at=h.now, host="elsewhere")) == []
    h.handle(HostUnserved(at=h.now, host=HOST))
    assert (h.state("p"), h.state("q")) == (["waiting"], ["ready"])
    said = h.handle(HostServed(at=h.now, host=HOST))
    assert [reclaim.ref for reclaim in of_type(said, Reclaim)] == [container_name("over", 1)]
    h.run_to(2.0)
    assert h.preparing().count("p") == 2


# --- the end


def test_what_is_ready_goes_with_its_program(h):
    h.open("p")
    h.run_to(0.05)
    h.ready("p")
    (reclaim,) = of_type(h.close("p", Outcome.SUCCESS), Reclaim)
    assert (reclaim.kind, reclaim.ref) == ("environment", container_name("p", 1))
    gone = {"kind": "environment", "ref": reclaim.ref, "host": HOST, "end": ReclaimEnd.GONE}
    h.handle(ReclaimEnded(at=h.now, **gone))
    assert h.state("p") == ["reclaimed"]
    assert h.environment("p") == "gone"
    assert h.ready("p") == [], "word of it comes too late"


@pytest.mark.parametrize("word", [EnvironmentPrepared, EnvironmentFailed])
def test_what_is_being_prepared_is_abandoned_and_then_reclaimed(h, word):
    h.open("p")
    h.run_to(0.05)
    said = h.close("p", Outcome.DROPPED)
    (abandon,) = of_type(said, AbandonEnvironment)
    assert abandon.name == container_name("p", 1)
    assert of_type(said, Reclaim) == [], "it cannot be removed while it is being made"
    said = h.ready("p") if word is EnvironmentPrepared else h.fail("p", reason="abandoned")
    assert [reclaim.ref for reclaim in of_type(said, Reclaim)] == [abandon.name]
    assert h.scheduler.counters.environments_prepared == 0


def test_what_was_never_begun_leaves_nothing(h):
    h.call("filler", 1000)
    h.open("p")
    said = h.close("p", Outcome.SUCCESS)
    assert of_type(said, Reclaim, AbandonEnvironment) == []
    h.run_to(5.0)
    assert h.preparing() == []


def test_a_reopened_program_has_another_one(h):
    h.open("p")
    h.run_to(0.05)
    h.ready("p", "c1")
    h.close("p", Outcome.SUCCESS)
    h.open("p")
    h.run_to(1.0)
    h.ready("p", "c2", generation=2)
    view = environment_view(h.scheduler.program("p").environment)
    assert view["container_id"] == "c2"
    assert container_name("p", 1) != container_name("p", 2)


def test_a_client_that_gives_it_back_answers_for_it(h):
    h.open("p")
    h.run_to(0.05)
    h.release("p", "environment", container_name("p", 1), host=HOST)
    h.ready("p")
    assert of_type(h.close("p", Outcome.SUCCESS), Reclaim) == []


def test_only_so_many_images_are_remembered():
    times = PrepareTimes()
    for number in range(IMAGES + 1):
        times.learn(f"image-{number}", 1.0)
    assert (times.expected("image-0"), times.expected("image-1")) == (UNKNOWN_S, 1.0)


# --- hibernation


@pytest.fixture
def sleepy() -> Kitchen:
    """A program whose environment is ready is the second in the queue for a backend that is full."""
    h = Kitchen(hibernate_after_s=60.0, max_wait_s=10_000.0)
    h.open("p", lease_s=5000.0)
    h.run_to(0.05)
    h.ready("p")
    h.call("filler", 1000)
    h.call("first", 900)
    h.call("p", 500)
    assert h.status("first", "p") == ["paused", "paused"]
    return h


def test_a_program_paused_for_long_has_its_environment_paused_and_woken_before_it_returns(sleepy):
    h = sleepy
    assert of_type(h.run_to(60.0), Hibernate) == []
    (hibernate,) = of_type(h.run_to(60.1), Hibernate)
    assert hibernate.container_id == "c"
    assert h.state("p") == ["hibernating"]
    h.handle(EnvironmentHibernated(at=h.now, program_id="p", generation=1))
    assert of_type(h.run_to(70.0), Wake) == []
    assert [restore.program_id for restore in of_type(h.close("filler", Outcome.DROPPED), Restore)] == [
        "first"
    ]
    (wake,) = of_type(h.run_to(71.0), Wake)
    assert wake.container_id == "c"
    assert of_type(h.close("first", Outcome.DROPPED), Restore) == []
    assert of_type(h.said(EnvironmentWoken, "p"), Restore) != []
    assert h.state("p") == ["ready"]


def test_the_first_in_the_queue_keeps_its_environment_running(sleepy):
    h = sleepy
    h.close("first", Outcome.DROPPED)
    assert of_type(h.run_to(200.0), Hibernate) == []


def test_whose_turn_comes_while_its_environment_falls_asleep(sleepy):
    h = sleepy
    h.run_to(60.1)
    h.close("first", Outcome.DROPPED)
    assert of_type(h.close("filler", Outcome.DROPPED), Restore) == []
    assert of_type(h.said(EnvironmentHibernated, "p"), Wake) != []
    assert of_type(h.said(EnvironmentWoken, "p"), Restore) != []


def test_one_that_cannot_be_paused_runs_on(sleepy):
    h = sleepy
    h.run_to(60.1)
    h.said(EnvironmentWoken, "p")
    assert h.state("p") == ["ready"]
    assert of_type(h.run_to(121.0), Hibernate) != [], "tried again as long after"
    h.said(EnvironmentFailed, "p", reason="its container is gone", retryable=True)
    assert h.state("p") == ["failed"]
    assert h.fail("p") == []
    assert h.said(EnvironmentWoken, "p") == []
    assert h.said(EnvironmentHibernated, "p") == []
    assert h.ready("p") == []


def test_one_that_is_not_ready_yet_is_not_paused():
    h = Kitchen(hibernate_after_s=60.0, max_wait_s=10_000.0)
    h.open("p", lease_s=5000.0)
    h.call("filler", 1000)
    h.call("first", 900)
    h.call("p", 500)
    assert of_type(h.run_to(100.0), Hibernate) == []


def test_no_tool_has_its_container_paused(sleepy):
    h = sleepy
    h.acting("p")
    assert of_type(h.run_to(100.0), Hibernate) == []


def test_a_tool_that_begins_wakes_it(sleepy):
    h = sleepy
    h.run_to(60.1)
    h.said(EnvironmentHibernated, "p")
    assert of_type(h.acting("p"), Wake) != []


def test_a_host_that_is_served_again_goes_on_with_what_it_was_at(sleepy):
    h = sleepy
    h.run_to(60.1)
    assert of_type(h.handle(HostServed(at=h.now, host=HOST)), Hibernate) != []
    h.said(EnvironmentHibernated, "p")
    h.close("first", Outcome.DROPPED)
    h.run_to(62.0)
    assert h.state("p") == ["waking"]
    assert of_type(h.handle(HostServed(at=h.now, host=HOST)), Wake) != []
    h.put("bystander", environment=EnvironmentWanted(image="i", host="elsewhere"))
    assert of_type(h.handle(HostServed(at=h.now, host="elsewhere")), Wake, Hibernate) == []


# --- from before the server's start


def test_a_recovered_program_keeps_its_environment(h):
    name = container_name("p", 1)
    held = (RecoveredResource(kind="environment", ref=name, host=HOST),)
    known = {"generation": 1, "opened_at": -9.0, "environment": WANTED, "fields": {"lease_s": 5.0}}
    h.handle(ProgramRecovered(at=0.0, program_id="p", **known, resources=held, container_id="c"))
    h.handle(ProgramRecovered(at=0.0, program_id="q", **known))
    assert h.state("p") == ["ready"]
    said = h.run_to(1.0)
    assert [prepare.program_id for prepare in of_type(said, PrepareEnvironment)] == ["q"]
    assert [reclaim.ref for reclaim in of_type(h.run_to(7.0), Reclaim)] == [name]


def test_another_programs_resource_of_that_kind(h):
    h.declare("p", "environment", "mine", host=HOST)
    assert h.state("p") == ["declared"]
    assert set(EnvironmentState) >= {"waiting", "ready", "failed", "gone"}
