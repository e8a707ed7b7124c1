"""Who holds what, whose end condemns it, in which order it goes, and what becomes of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.server.core.harness import Harness, of_type
from thunder_server.core.decisions import Claim, Observe, Reclaim, ResourceChanged, Survey
from thunder_server.core.events import Outcome
from thunder_server.core.resource_events import (
    FailedRetried,
    Found,
    HostServed,
    HostUnserved,
    OrphansGiven,
    ProgramRecovered,
    ReclaimEnd,
    ReclaimEnded,
    RecoveredResource,
    ResourceObserved,
    Surveyed,
)

HOST = "box"


class Workers(Harness):
    """A harness whose hosts are served, and whose removals the test plays."""

    def __init__(self, *hosts: str) -> None:
        super().__init__("passthrough")
        for host in hosts:
            self.handle(HostServed(at=self.now, host=host))

    def hold(self, program: str, kind: str = "container", ref: str = "c", *, host: str = HOST, **kw):
        return self.declare(program, kind, ref, host=host, **kw)

    def ended(self, ref: str = "c", end=ReclaimEnd.GONE, *, kind: str = "container", host: str = HOST, **kw):
        return self.handle(ReclaimEnded(at=self.now, kind=kind, ref=ref, host=host, end=end, **kw))

    def states(self, program: str) -> list[tuple[str, str]]:
        return [(one["ref"], one["state"]) for one in self.view(program)["resources"]]

    def reasons(self) -> list[str]:
        return [holding.reason for holding in self.scheduler.ledger.holdings]


def removed(decisions) -> list[str]:
    return [reclaim.ref for reclaim in of_type(decisions, Reclaim)]


@pytest.fixture
def h() -> Workers:
    return Workers(HOST)


# --- whose end condemns what


@pytest.mark.parametrize("how", ["close", "error", "drop", "lease", "final call"])
def test_whatever_the_end_what_a_program_held_goes_once(h, how):
    h.put("p", lease_s=10.0)
    h.hold("p")
    match how:
        case "lease":
            said = h.run_to(11.0)
        case "final call":
            h.backend("a", None)
            said = h.finish(h.call("p", final=True))
        case _:
            outcome = {"close": Outcome.SUCCESS, "error": Outcome.ERROR, "drop": Outcome.DROPPED}[how]
            said = h.close("p", outcome)
    assert removed(said) == ["c"]
    assert removed(h.close("p", Outcome.DROPPED)) == []
    h.ended()
    assert h.states("p") == [("c", "reclaimed")]
    assert h.scheduler.counters.resources_ended == {"reclaimed": 1}
    assert h.ended() == [], "a second answer changes nothing"
    assert removed(h.run_to(h.now + 100.0)) == []


def test_a_closing_program_holds_what_it_has_until_its_calls_are_through(h):
    h.backend("a", None)
    call = h.call("p")
    h.hold("p")
    assert removed(h.close("p", Outcome.SUCCESS)) == []
    assert removed(h.hold("p", ref="late")) == []
    assert sorted(removed(h.finish(call))) == ["c", "late"]


def test_what_is_declared_after_the_end_goes_at_once(h):
    h.put("p")
    h.close("p", Outcome.SUCCESS)
    assert removed(h.hold("p", seq=900)) == ["c"]
    assert removed(h.hold("p", ref="again", seq=900)) == [], "an event that was seen already"
    h.ended()
    assert h.heartbeat("p", seq=901) == []
    assert h.release("p", "container", "c", host=HOST, seq=902) == [], "it is gone"
    assert h.states("p") == [("c", "reclaimed")]


def test_what_was_given_back_or_is_to_be_kept_stays(h):
    h.hold("p", ref="back")
    h.hold("p", ref="kept", keep=True)
    h.hold("p", "directory", "/elsewhere", host="far", keep=True)
    h.hold("p", ref="first-kept-then-not", keep=True)
    h.hold("p", ref="first-kept-then-not", keep=False)
    h.release("p", "container", "back", host=HOST)
    h.release("p", "container", "never-declared", host=HOST)
    h.release("q", "container", "back", host=HOST)
    assert removed(h.close("p", Outcome.SUCCESS)) == ["first-kept-then-not"]
    assert h.states("p") == [
        *(("back", "released"), ("kept", "kept"), ("/elsewhere", "kept")),
        ("first-kept-then-not", "reclaiming"),
    ]
    kept = found("kept", "p")
    assert h.scheduler.ledger.holdings.unknown(HOST, [kept]) == []
    assert h.scheduler.ledger.holdings.unknown("far", [kept]) == [kept]


def test_what_was_given_back_can_be_held_again(h):
    h.hold("p")
    h.release("p", "container", "c", host=HOST)
    assert [change.state for change in of_type(h.hold("p"), ResourceChanged)] == ["declared"]
    assert of_type(h.hold("p"), ResourceChanged) == [], "nothing new"
    h.hold("q")
    h.release("p", "container", "c", host=HOST)
    h.hold("p")
    assert h.states("p") == [("c", "declared")]
    assert removed(h.close("p", Outcome.SUCCESS)) == []
    assert removed(h.close("q", Outcome.SUCCESS)) == ["c"]


def test_the_last_to_go_takes_it_along(h):
    for program in ("p", "q", "r"):
        h.put(program)
        h.hold(program, "image", "img")
    assert removed(h.close("p", Outcome.SUCCESS)) == []
    assert h.states("p") == [("img", "shared")]
    assert removed(h.close("q", Outcome.DROPPED)) == []
    h.after(5.0)
    (reclaim,) = of_type(h.close("r", Outcome.SUCCESS), Reclaim)
    assert {claim.program_id for claim in reclaim.claims} == {"p", "q", "r"}
    assert (reclaim.program_id, reclaim.attempt) == ("r", 1)
    assert reclaim.claims[0] == Claim(program_id="p", opened_at=0.0, ended_at=0.0)
    h.ended("img", kind="image")
    assert h.states("p") == h.states("r") == [("img", "reclaimed")]


def test_one_who_wants_it_kept_is_enough(h):
    h.hold("p", "image", "img", keep=True)
    h.hold("q", "image", "img")
    h.close("p", Outcome.SUCCESS)
    assert removed(h.close("q", Outcome.SUCCESS)) == []
    assert h.states("p") == h.states("q") == [("img", "kept")]


def test_giving_it_back_leaves_it_to_those_who_are_over(h):
    h.hold("p", "volume", "v")
    h.hold("q", "volume", "v")
    h.close("p", Outcome.SUCCESS)
    assert removed(h.release("q", "volume", "v", host=HOST)) == ["v"]
    assert h.states("p") == [("v", "reclaiming")]


def test_a_thing_that_is_held_again_before_it_is_gone_stays():
    h = Workers()  # nobody serves any host
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.hold("q")
    assert h.states("p") == [("c", "shared")]
    assert removed(h.handle(HostServed(at=h.now, host=HOST))) == []
    assert removed(h.close("q", Outcome.SUCCESS)) == ["c"]


def test_who_declares_a_thing_that_is_being_removed_has_its_own_removed_later(h):
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.hold("q")  # another one of that name, perhaps
    h.after(1.0)
    assert removed(h.close("q", Outcome.SUCCESS)) == [], "one at a time"
    (reclaim,) = of_type(h.ended(), Reclaim)
    assert [claim.program_id for claim in reclaim.claims] == ["q"]
    assert h.states("p") == [("c", "reclaimed")]
    h.ended()
    assert h.states("q") == [("c", "reclaimed")]


def test_a_removal_that_fails_is_dropped_if_somebody_holds_the_thing_now(h):
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.hold("q")
    h.ended(end=ReclaimEnd.FAILED, reason="busy")
    assert (h.states("p"), h.states("q")) == ([("c", "shared")], [("c", "declared")])
    assert removed(h.run_to(60.0)) == []


def test_word_that_it_was_given_back_comes_too_late_for_a_removal_that_is_under_way(h):
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.release("p", "container", "c", host=HOST)
    assert h.states("p") == [("c", "reclaiming")]
    h.ended(end=ReclaimEnd.FAILED, reason="busy")
    h.release("p", "container", "c", host=HOST)
    assert h.states("p") == [("c", "released")]
    assert removed(h.run_to(60.0)) == []


def test_one_of_two_who_are_over_gives_it_back(h):
    h.hold("p")
    h.hold("q")
    h.close("p", Outcome.SUCCESS)
    h.close("q", Outcome.SUCCESS)
    h.ended(end=ReclaimEnd.FAILED, reason="busy")
    h.release("q", "container", "c", host=HOST)
    assert removed(h.run_to(5.0)) == ["c"]
    h.ended()
    assert (h.states("p"), h.states("q")) == ([("c", "reclaimed")], [("c", "released")])


def test_generations_are_told_apart(h):
    h.hold("p", ref="old")
    h.close("p", Outcome.SUCCESS)
    h.after(3.0)
    h.put("p")
    h.ended("old", ReclaimEnd.FAILED, reason="busy")
    (again,) = of_type(h.run_to(4.0), Reclaim)
    assert again.claims == (Claim(program_id="p", opened_at=0.0, ended_at=0.0, next_opened_at=3.0),)
    assert (h.view("p")["generation"], h.view("p")["resources"]) == (2, [])
    h.ended("old")
    assert [holding.thing.key.ref for holding in h.scheduler.ledger.holdings] == []


def test_an_older_generation_that_ends_late(h):
    h.backend("a", None)
    call = h.call("p")
    h.hold("p", ref="old")
    h.close("p", Outcome.SUCCESS)
    h.put("p")
    assert removed(h.finish(call)) == ["old"]
    h.ended("old")
    assert list(h.scheduler.ledger.holdings) == []


# --- in which order it goes


def test_things_go_in_order(h):
    kinds = ["port", "directory", "image", "volume", "network", "container", "process"]
    for kind in kinds:
        h.hold("p", kind, f"the-{kind}")
    said = h.close("p", Outcome.SUCCESS)
    for kind in ("process", "container", "network", "volume", "image", "directory"):
        assert removed(said) == [f"the-{kind}"]
        said = h.ended(f"the-{kind}", kind=kind)
    assert {state for _, state in h.states("p")} == {"reclaimed"}  # the port needs nobody's help


def test_things_of_one_rank_go_side_by_side(h):
    for ref in "ab":
        h.hold("p", ref=ref)
    h.hold("p", "network", "n")
    assert removed(h.close("p", Outcome.SUCCESS)) == ["a", "b"]
    assert removed(h.ended("a")) == []
    assert removed(h.ended("b", ReclaimEnd.SPARED, reason="older than the program")) == ["n"]
    assert h.states("p") == [("a", "reclaimed"), ("b", "spared"), ("n", "reclaiming")]
    assert "older than the program" in h.reasons()


def test_failures_are_tried_again_and_given_up(h):
    h.hold("p")
    h.hold("p", "directory", "/d")
    h.close("p", Outcome.SUCCESS)
    attempts = []
    for _ in range(5):
        h.ended(end=ReclaimEnd.FAILED, reason="removal in progress")
        before = h.now
        while not (reclaims := of_type(h.run_to(h.now + 0.25), Reclaim)):
            pass
        attempts.append((reclaims[0].attempt, h.now - before))
    assert attempts == [(2, 0.5), (3, 1.0), (4, 2.0), (5, 4.0), (6, 8.0)]
    assert removed(h.ended(end=ReclaimEnd.FAILED, reason="removal in progress")) == ["/d"]
    assert h.states("p") == [("c", "failed"), ("/d", "reclaiming")]
    assert "removal in progress" in h.reasons()
    h.run_to(h.now + 700.0)
    assert h.scheduler.program("p") is None
    assert [holding.state for holding in h.scheduler.ledger.holdings] == ["reclaiming", "failed"][::-1]
    assert removed(h.handle(FailedRetried(at=h.now, program_id="another"))) == []
    assert removed(h.handle(FailedRetried(at=h.now))) == ["c"]
    h.ended()
    h.ended("/d", kind="directory")
    assert list(h.scheduler.ledger.holdings) == []


def test_what_cannot_succeed_is_not_tried_again(h):
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.ended(end=ReclaimEnd.FAILED, reason="no", retryable=False)
    assert h.states("p") == [("c", "failed")]
    h.hold("q")
    assert h.states("p") == [("c", "shared")], "q answers for it now"


# --- hosts


def test_a_host_that_nobody_serves_holds_nothing_up(h):
    h.hold("p", ref="far", host="far")
    h.hold("p", "directory", "/d")
    assert removed(h.close("p", Outcome.SUCCESS)) == ["/d"]
    h.ended("/d", kind="directory")
    assert h.states("p") == [("far", "reclaiming"), ("/d", "reclaimed")]
    assert removed(h.handle(HostServed(at=h.now, host="far"))) == ["far"]
    assert h.handle(HostServed(at=h.now, host="far")) == [], "it is known already"
    h.handle(HostUnserved(at=h.now, host="far"))
    h.handle(HostUnserved(at=h.now, host="far"))
    assert h.ended("far", host="far") == [], "its reaper was given up"
    (again,) = of_type(h.handle(HostServed(at=h.now, host="far")), Reclaim)
    assert again.attempt == 1


def test_a_host_that_is_never_served_again_is_given_up_until_it_is(h):
    h.hold("p", ref="far", host="far")
    h.close("p", Outcome.SUCCESS)
    h.hold("q", ref="far", host="far", seq=5)
    h.close("q", Outcome.SUCCESS)
    h.run_to(599.0)
    assert h.states("p") == [("far", "reclaiming")]
    h.run_to(601.0)
    assert {holding.state.value for holding in h.scheduler.ledger.holdings} == {"failed"}
    assert "thunder reaper" in h.reasons()[0]
    assert removed(h.handle(HostServed(at=h.now, host="far"))) == ["far"]
    h.ended("far", host="far")


def test_late_word_of_a_thing_on_a_host_that_nobody_serves():
    h = Workers()
    h.hold("p", ref="far")
    h.close("p", Outcome.SUCCESS)
    h.put("q")
    h.close("q", Outcome.SUCCESS)
    h.hold("q", ref="far")
    h.hold("q", "directory", "/d", host="elsewhere")
    h.handle(HostServed(at=h.now, host="elsewhere"))
    (reclaim,) = of_type(h.handle(HostServed(at=h.now, host=HOST)), Reclaim)
    assert [claim.program_id for claim in reclaim.claims] == ["p", "q"]


# --- what was declared


def test_what_is_declared_is_looked_at(h):
    (observe,) = of_type(h.hold("p", "image", "img"), Observe)
    assert (observe.ref, observe.claims[0].program_id) == ("img", "p")
    assert of_type(h.hold("p", "directory", "/d"), Observe) == []
    assert of_type(h.hold("p", ref="far", host="far"), Observe) == []
    seen = {"kind": "image", "ref": "img", "host": HOST}
    h.handle(ResourceObserved(at=h.now, **seen, pin="sha256:1", brought=True))
    h.handle(ResourceObserved(at=h.now, **seen, pin="sha256:2", brought=False))
    assert of_type(h.hold("q", "image", "img"), Observe) == [], "what it is is known"
    h.handle(ResourceObserved(at=h.now, kind="image", ref="unheard-of", host=HOST, pin="x", brought=None))
    h.close("q", Outcome.SUCCESS)
    (reclaim,) = of_type(h.close("p", Outcome.SUCCESS), Reclaim)
    assert (reclaim.pin, reclaim.brought) == ("sha256:1", True)


def test_a_programs_beginning_is_the_clients(h):
    h.after(10.0)
    h.call("p")  # before the PUT has arrived, which says more
    h.hold("p")
    h.put("p", age_s=4.0)
    h.hold("p", ref="d")
    h.close("p", Outcome.DROPPED)
    assert {claim.opened_at for reclaim in of_type(h.decisions, Reclaim) for claim in reclaim.claims} == {6.0}


# --- what nobody declared


def found(ref: str, program_id: str, created_at: float = 0.0, name: str = "n") -> Found:
    return Found(kind="container", ref=ref, name=name, program_id=program_id, created_at=created_at)


def test_hosts_are_looked_at_after_programs_end(h):
    h.call(None)
    h.put("p")
    h.put("q")
    h.close("p", Outcome.SUCCESS)
    assert of_type(h.run_to(0.9), Survey) == []
    h.close("q", Outcome.SUCCESS)
    (survey,) = of_type(h.run_to(1.0), Survey)
    assert survey.host == HOST
    h.put("r")
    h.close("r", Outcome.SUCCESS)
    assert of_type(h.run_to(9.0), Survey) == [], "one at a time"
    said = h.handle(Surveyed(at=h.now, host=HOST, objects=(found("c1", "p"), found("c2", "stranger"))))
    assert removed(said) == ["c1"]
    assert of_type(h.run_to(10.0), Survey) != [], "r ended meanwhile"
    assert h.states("p") == [("c1", "reclaiming")]
    assert removed(h.handle(Surveyed(at=h.now, host=HOST, objects=(found("c1", "p"),)))) == []


def test_surveys_that_find_nothing_become_rare(h):
    times = []
    for number in range(8):
        h.put(f"p{number}")
        h.close(f"p{number}", Outcome.SUCCESS)
        while not of_type(h.run_to(h.now + 0.5), Survey):
            pass
        times.append(h.now)
        h.handle(Surveyed(at=h.now, host=HOST, objects=None))
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]


def test_what_is_held_under_another_name_is_no_orphan(h):
    for ref in ("by-name", "0123456789ab", "d" * 20, "f" * 64, "pinned"):
        h.hold("p", ref=ref, keep=True)
    h.handle(ResourceObserved(at=0.0, kind="container", ref="pinned", host=HOST, pin="e" * 64, brought=True))
    h.close("p", Outcome.SUCCESS)
    h.run_to(1.0)
    objects = (
        found("1" * 64, "p", name="by-name"),
        found("0123456789ab" + "c" * 52, "p"),
        found("d" * 64, "p"),
        found("f" * 64, "p"),
        found("e" * 64, "p"),
    )
    assert removed(h.handle(Surveyed(at=h.now, host=HOST, objects=objects))) == []


def test_only_what_is_older_than_a_generation_is_an_earlier_ones(h):
    h.put("p")
    h.close("p", Outcome.SUCCESS)
    h.run_to(1.0)
    h.after(4.0).put("p")
    said = h.handle(Surveyed(at=h.now, host=HOST, objects=(found("old", "p", 2.0), found("new", "p", 5.0))))
    (reclaim,) = of_type(said, Reclaim)
    assert (reclaim.ref, reclaim.generation) == ("old", 1)
    h.put("q")
    h.after(1.0).close("q", Outcome.SUCCESS)
    h.run_to(20.0)
    before_any = Surveyed(at=h.now, host=HOST, objects=(found("x", "first-generation"),))
    h.put("first-generation")
    assert removed(h.handle(before_any)) == [], "nobody had that id before, as far as is known"


def test_word_from_hosts_that_are_no_longer_served(h):
    h.put("p")
    h.close("p", Outcome.SUCCESS)
    h.handle(HostUnserved(at=h.now, host=HOST))
    assert of_type(h.run_to(5.0), Survey) == []
    assert h.handle(Surveyed(at=h.now, host=HOST, objects=(found("c", "p"),))) == []


def test_orphans_of_strangers_go_at_the_operators_word(h):
    given = OrphansGiven(at=h.now, host=HOST, objects=(found("c", "stranger"), found("d", "stranger")))
    assert removed(h.handle(given)) == ["c", "d"]
    assert removed(h.handle(given)) == [], "they are being removed"
    h.ended("c")
    h.ended("d", ReclaimEnd.FAILED, reason="no", retryable=False)
    assert [holding.thing.key.ref for holding in h.scheduler.ledger.holdings] == ["d"]
    h.put("stranger")
    assert h.view("stranger")["generation"] == 1


# --- from before the server's start


def recovered(program_id: str, generation: int = 1, **kw) -> ProgramRecovered:
    resource = RecoveredResource(kind="container", ref=f"c{generation}", host=HOST, pin="p" * 64)
    kw.setdefault("resources", (resource,))
    return ProgramRecovered(at=0.0, program_id=program_id, generation=generation, opened_at=-50.0, **kw)


def test_a_recovered_program_lives_on_if_it_is_heard_of(h):
    h.handle(recovered("p", 3, fields={"name": "n", "lease_s": 5.0}))
    h.handle(recovered("q", fields={"lease_s": 1.0}))
    assert (h.view("p")["generation"], h.view("p")["name"], h.view("p")["opened_at"]) == (3, "n", -50.0)
    h.after(4.0).heartbeat("p")
    assert of_type(h.run_to(5.9), Reclaim) == [], "however short its lease, clients try every 5 s"
    (reclaim,) = of_type(h.run_to(6.1), Reclaim)
    assert (reclaim.ref, reclaim.pin) == ("c1", "p" * 64)
    assert reclaim.claims == (Claim(program_id="q", opened_at=-50.0, ended_at=6.0),)
    assert h.states("p") == [("c3", "declared")]


def test_what_had_ended_goes_at_once(h):
    said = h.handle(recovered("p", 2, ended_at=-10.0, outcome=Outcome.ERROR))
    (reclaim,) = of_type(said, Reclaim)
    assert reclaim.claims == (Claim(program_id="p", opened_at=-50.0, ended_at=-10.0),)
    assert h.view("p")["outcome"] == "error"
    h.put("p")
    assert h.view("p")["generation"] == 3


def test_an_earlier_generation_of_a_recovered_program(h):
    h.handle(recovered("p", 2))
    (reclaim,) = of_type(h.handle(recovered("p", 1, ended_at=-45.0)), Reclaim)
    assert reclaim.claims[0].ended_at == -45.0
    assert of_type(h.handle(recovered("p", 0)), Reclaim)[0].claims[0].ended_at == -50.0
    assert h.view("p")["generation"] == 2


def test_what_an_ended_program_shares_with_a_living_one(h):
    shared = (RecoveredResource(kind="image", ref="img", host=HOST),)
    h.handle(recovered("p", resources=shared))
    assert removed(h.handle(recovered("q", ended_at=-1.0, resources=shared))) == []
    assert h.states("q") == [("img", "shared")]


def test_a_forgotten_id_that_left_something_goes_on_counting(h):
    h.hold("p")
    h.close("p", Outcome.SUCCESS)
    h.run_to(700.0)
    assert h.scheduler.program("p") is None
    h.put("p")
    assert h.view("p")["generation"] == 2


def test_what_a_program_was_not_allowed_to_take_goes_with_the_one_whose_label_it_carries(h):
    h.hold("thief", ref="c1")
    h.put("owner")
    h.close("thief", Outcome.SUCCESS)
    h.ended("c1", ReclaimEnd.SPARED, reason="it carries the label of owner")
    labelled = Surveyed(at=h.now, host=HOST, objects=(found("c1", "owner"),))
    h.run_to(1.0)
    assert removed(h.handle(labelled)) == []  # its owner lives
    h.close("owner", Outcome.SUCCESS)
    h.run_to(30.0)
    assert removed(h.handle(labelled)) == ["c1"]
    h.ended("c1", ReclaimEnd.SPARED, reason="in use")
    assert removed(h.handle(labelled)) == []  # spared of its own owner too: that is the last word
