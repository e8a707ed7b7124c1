"""Work on resources: handed out under leases, renewed, handed out again, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from thunder_sdk import wire
from thunder_server.core import decisions as d
from thunder_server.core import resource_events as e
from thunder_server.core.events import Event
from thunder_server.errands import LEASE_S, LOST_AFTER_S, Errands, Unserved

WHOSE = {"program_id": "p", "generation": 1, "host": "far"}
CLAIMS = (d.Claim(program_id="p", opened_at=1.0, ended_at=2.0, next_opened_at=3.0),)


def reclaim(ref: str = "c", host: str = "far") -> d.Reclaim:
    whose = {**WHOSE, "host": host}
    return d.Reclaim(**whose, kind="container", ref=ref, claims=CLAIMS, attempt=2, pin="x", brought=True)


class Hands:
    """A worker on this machine that does what the test says."""

    def __init__(self, hosts: Sequence[str] = ("here",)) -> None:
        self.hosts = hosts
        self.tasks: list[wire.Task] = []
        self.abandoned: list[str] = []
        self.results: asyncio.Queue[wire.TaskResult] = asyncio.Queue()
        self.closed = False

    async def run(self, task: wire.Task) -> wire.TaskResult:
        self.tasks.append(task)
        result = await self.results.get()
        return {**result, "task": task["task"]}

    def abandon(self, task_id: str) -> None:
        self.abandoned.append(task_id)

    async def close(self) -> None:
        self.closed = True


class Office:
    """Errands with a clock that the test moves, and all events that they post."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Event] = []
        self.errands = Errands(self.events.append, lambda: self.now, lambda at: at + 1000.0)

    def take(self, reaper: str = "r1", *busy: str, hosts: Sequence[str] = ("far",), most: int = 8):
        self.errands.seen(reaper, hosts, busy)
        return self.errands.hand_out(reaper, most)

    def said(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
async def office():
    office = Office()
    yield office
    await office.errands.stop()


async def test_a_task_says_what_is_to_be_done(office: Office) -> None:
    office.errands.give(reclaim())
    (task,) = office.take()
    assert task == {
        "task": task["task"],
        "do": "reclaim",
        "host": "far",
        "now": 1100.0,
        "timeout_s": 30.0,
        "attempt": 2,
        "program_id": "p",
        "generation": 1,
        "kind": "container",
        "ref": "c",
        "claims": [{"program_id": "p", "opened_at": 1001.0, "ended_at": 1002.0, "next_opened_at": 1003.0}],
        "pin": "x",
        "brought": True,
    }
    assert office.take() == [], "it is under way"
    office.errands.results([{"task": task["task"], "end": "done"}])
    office.errands.give(reclaim())
    (again,) = office.take()
    assert again["task"] == task["task"], "the same work goes by the same name"


@pytest.mark.parametrize(
    ("errand", "result", "event"),
    [
        (reclaim(), {"end": "done"}, e.ReclaimEnd.GONE),
        (reclaim(), {"end": "absent", "error": "not there"}, e.ReclaimEnd.GONE),
        (reclaim(), {"end": "spared", "error": "older"}, e.ReclaimEnd.SPARED),
        (reclaim(), {"end": "failed", "error": "busy", "retryable": True}, e.ReclaimEnd.FAILED),
        (
            d.Observe(**WHOSE, kind="image", ref="i", claims=CLAIMS),
            {"end": "done", "pin": "sha256:1", "brought": True},
            e.ResourceObserved(at=100.0, kind="image", ref="i", host="far", pin="sha256:1", brought=True),
        ),
        (d.Survey(**WHOSE), {"end": "absent"}, e.Surveyed(at=100.0, host="far", objects=None)),
        (
            d.Survey(**WHOSE),
            {
                "end": "done",
                "objects": [
                    {"kind": "volume", "ref": "v", "name": "v", "program_id": "p", "created_at": 1050.0}
                ],
            },
            e.Surveyed(
                at=100.0,
                host="far",
                objects=(e.Found(kind="volume", ref="v", name="v", program_id="p", created_at=50.0),),
            ),
        ),
        (
            d.PrepareEnvironment(**WHOSE, name="n", spec={"image": "i"}, attempt=1),
            {"end": "done", "container_id": "c", "seconds": 2.0},
            e.EnvironmentPrepared(at=100.0, program_id="p", generation=1, container_id="c", seconds=2.0),
        ),
        (
            d.PrepareEnvironment(**WHOSE, name="n", spec={"image": "i"}, attempt=1),
            {"end": "failed", "error": "no such image", "retryable": False},
            e.EnvironmentFailed(at=100.0, program_id="p", generation=1, reason="no such image"),
        ),
        (
            d.Hibernate(**WHOSE, container_id="c"),
            {"end": "done"},
            e.EnvironmentHibernated(at=100.0, program_id="p", generation=1),
        ),
        (
            d.Hibernate(**WHOSE, container_id="c"),
            {"end": "failed", "error": "not supported"},
            e.EnvironmentWoken(at=100.0, program_id="p", generation=1),
        ),
        (
            d.Hibernate(**WHOSE, container_id="c"),
            {"end": "absent"},
            e.EnvironmentFailed(at=100.0, program_id="p", generation=1, reason="its container is gone"),
        ),
        (
            d.Wake(**WHOSE, container_id="c"),
            {"end": "done"},
            e.EnvironmentWoken(at=100.0, program_id="p", generation=1),
        ),
    ],
)
async def test_results_become_events(office: Office, errand: d.Errand, result: dict, event: object) -> None:
    office.errands.give(errand)
    (task,) = office.take()
    assert office.errands.results([{"task": task["task"], **result}]) == []
    (told,) = [event for event in office.events if not isinstance(event, e.HostServed)]
    if isinstance(told, e.ReclaimEnded):
        assert (told.end, told.reason) == (event, result.get("error", ""))
    else:
        assert told == event
    assert office.errands.results([{"task": task["task"], **result}]) == [task["task"]], "nobody asks now"


async def test_what_is_no_work_is_no_errand(office: Office) -> None:
    with pytest.raises(TypeError, match="no work for anybody"):
        office.errands.give(d.Errand(**WHOSE))


async def test_what_is_not_renewed_is_handed_out_again(office: Office) -> None:
    office.errands.give(reclaim())
    (task,) = office.take("r1")
    office.now += LEASE_S - 1
    office.take("r1", task["task"])
    office.now += LEASE_S - 1
    office.errands.check_leases()
    assert office.take("r2") == [], "it was renewed"
    office.now += 2
    office.errands.check_leases()
    (again,) = office.take("r2")
    assert again["task"] == task["task"]
    office.take("r1", task["task"])
    office.now += 1
    office.errands.check_leases()
    assert office.errands.results([{"task": task["task"], "end": "done"}]) == [], "whoever is first"


async def test_a_reaper_that_comes_back_with_its_work_keeps_it(office: Office) -> None:
    office.errands.give(reclaim())
    (task,) = office.take("r1")
    office.now += LEASE_S
    office.errands.check_leases()
    assert office.take("r1", task["task"]) == []
    assert office.take("r1", "unheard-of") == []


async def test_a_host_whose_last_reaper_is_silent_is_unserved(office: Office) -> None:
    office.errands.give(reclaim("mine"))
    office.errands.give(reclaim("other", "elsewhere"))
    office.take("r1", hosts=["far", "elsewhere"], most=1)
    office.now += LOST_AFTER_S - 1
    office.take("r2", hosts=["elsewhere"], most=0)
    office.now += 2
    office.errands.check_leases()
    (unserved,) = office.said(e.HostUnserved)
    assert unserved.host == "far"
    assert office.errands.hosts == {"elsewhere"}
    assert [task["ref"] for task in office.take("r2", hosts=["elsewhere", "far"])] == ["other"]


async def test_a_bell_rings_for_whoever_waits_for_work(office: Office) -> None:
    reaper = office.errands.seen("r1", ["far"], [])
    office.take("r2", hosts=["elsewhere"])
    waiting = asyncio.create_task(reaper.bell.wait())
    office.errands.give(reclaim())
    await waiting


async def test_only_so_much_at_a_time(office: Office) -> None:
    for number in range(3):
        office.errands.give(reclaim(f"c{number}"))
    assert [task["ref"] for task in office.take(most=2)] == ["c0", "c1"]
    assert [task["ref"] for task in office.take(most=2)] == ["c2"]


async def test_this_machines_work_is_done_here(office: Office) -> None:
    hands = Hands(["here", "unix:///engine.sock"])
    assert office.errands.here[0] == office.errands.here[1], "before: the machine's own name"
    office.errands.serve_with(hands)
    assert office.errands.here == ("here", "unix:///engine.sock")
    assert {event.host for event in office.said(e.HostServed)} == set(hands.hosts)
    office.errands.give(reclaim(host="here"))
    await hands.results.put({"task": "", "end": "done"})
    async with asyncio.timeout(5):
        while not office.said(e.ReclaimEnded):
            await asyncio.sleep(0)
    assert hands.tasks[0]["ref"] == "c"
    office.errands.give(reclaim("never-done", host="here"))
    await asyncio.sleep(0)
    await office.errands.stop()
    assert hands.closed


async def test_asking_for_oneself(office: Office) -> None:
    with pytest.raises(Unserved):
        await office.errands.ask(wire.Work.MEASURE, "far", kind="volume", ref="v")
    office.take()
    asking = asyncio.create_task(office.errands.ask(wire.Work.MEASURE, "far", kind="volume", ref="v"))
    await asyncio.sleep(0)
    (task,) = office.take()
    assert (task["do"], task["ref"]) == ("measure", "v")
    office.errands.results([{"task": task["task"], "end": "done", "bytes": 7}])
    assert (await asking)["bytes"] == 7
    impatient = asyncio.create_task(office.errands.ask(wire.Work.SURVEY, "far"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    assert office.take() == [], "nobody waits any longer"


async def test_preparing_is_abandoned_wherever_it_is(office: Office) -> None:
    prepare = d.PrepareEnvironment(**WHOSE, name="n", spec={}, attempt=1)
    abandon = d.AbandonEnvironment(**WHOSE, name="n")
    office.errands.give(abandon)  # it was never asked for
    office.errands.give(prepare)
    office.errands.give(abandon)
    (failed,) = office.said(e.EnvironmentFailed)
    assert failed.reason == "abandoned"
    office.errands.give(prepare)
    (task,) = office.take()
    office.errands.give(abandon)
    assert office.errands.abandoned("r1") == [task["task"]]
    assert office.errands.abandoned("r1") == []
    hands = Hands(["far"])
    office.errands.serve_with(hands)
    office.errands.give(prepare)
    office.errands.give(abandon)
    assert hands.abandoned == [task["task"]]
