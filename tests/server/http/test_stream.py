"""The ring behind the event stream."""

import asyncio
import json

import pytest

from thunder_server.core import decisions as d
from thunder_server.core import events as e
from thunder_server.stream import Stream

FIRST = 1000


def heard(stream: Stream, cursor: int) -> list[dict]:
    return [entry.payload(lambda at: at + 100) for entry in stream.since(cursor, 0.0)]


def opened(stream: Stream, *ids: str) -> None:
    for program_id in ids:
        decision = d.Opened(program_id=program_id, generation=1)
        stream.observe(e.ProgramOpened(at=1.0, program_id=program_id), [decision])


def test_entries_carry_id_time_type_and_program() -> None:
    stream = Stream(FIRST)
    opened(stream, "a", "b")
    assert heard(stream, FIRST) == [
        {"id": 1000, "at": 101.0, "type": "program.opened", "program_id": "a", "generation": 1},
        {"id": 1001, "at": 101.0, "type": "program.opened", "program_id": "b", "generation": 1},
    ]
    assert [entry["program_id"] for entry in heard(stream, FIRST + 1)] == ["b"]
    assert heard(stream, FIRST + 2) == []


def test_a_call_is_told_from_arrival_to_end() -> None:
    stream = Stream(FIRST)
    arrived = e.CallArrived(
        at=1.0, call_id="c", program_id=None, anonymous_id="anon", model="m", digest=b"\0"
    )
    sent = d.Dispatch(call_id="c", program_id="anon", backend_id="h:1", waited_s=0.5)
    stream.observe(arrived, [sent])
    done = e.CallFinished(at=2.0, call_id="c", end=e.CallEnd.COMPLETED, prompt_tokens=7)
    stream.observe(done, [])
    stream.observe(done, [])  # a late report of a call that is over says nothing
    told = heard(stream, FIRST)
    assert [entry["type"] for entry in told] == ["call.arrived", "call.dispatched", "call.finished"]
    assert {entry["program_id"] for entry in told} == {"anon"}
    assert told[1]["backend"] == "h:1"
    assert (told[2]["end"], told[2]["prompt_tokens"], told[2]["cached_tokens"]) == ("completed", 7, None)


def test_refused_calls_end_there() -> None:
    stream = Stream(FIRST)
    refusal = d.Refuse(
        call_id="c", program_id="p", refusal=d.Refusal.ADMISSION_TIMEOUT, message="too long", retry_after_s=5
    )
    stream.observe(e.CallArrived(at=1.0, call_id="c", program_id="p"), [refusal])
    stream.observe(e.CallFinished(at=2.0, call_id="c", end=e.CallEnd.CLIENT_GONE), [])
    told = heard(stream, FIRST)
    assert [entry["type"] for entry in told] == ["call.arrived", "call.refused"]
    assert told[1]["code"] == "admission_timeout"


def test_backends_are_told_when_their_health_changes() -> None:
    stream = Stream(FIRST)
    stream.observe(e.BackendAdded(at=0.0, backend_id="h:1"), [])
    for healthy in (True, True, False, False, True):
        stream.observe(e.BackendReported(at=1.0, backend_id="h:1", healthy=healthy), [])
    stream.observe(e.BackendDrained(at=2.0, backend_id="h:1"), [])
    stream.observe(e.BackendRemoved(at=2.0, backend_id="h:1"), [])
    told = heard(stream, FIRST)
    assert [entry["type"].removeprefix("backend.") for entry in told] == [
        "added",
        "healthy",
        "unhealthy",
        "healthy",
        "draining",
        "removed",
    ]
    assert {entry["backend"] for entry in told} == {"h:1"}


def test_every_told_decision_has_a_word() -> None:
    samples = [
        d.PhaseChanged(program_id="p", generation=1, phase="acting", tool="bash"),
        d.Marked(program_id="p", generation=1, backend_id="h:1", marked=True, reason="r"),
        d.Pause(program_id="p", generation=1, backend_id="h:1", context_tokens=5, reason="r"),
        d.Restore(
            program_id="p",
            generation=1,
            backend_id="h:1",
            context_tokens=5,
            paused_s=1,
            moved=False,
            reason="r",
        ),
        d.Terminate(program_id="p", generation=1, outcome=e.Outcome.DROPPED, reason="r"),
        d.Forget(program_id="p"),
        d.Cancel(call_id="c", program_id="p", backend_id="h:1", refusal=d.Refusal.SUPERSEDED, message="m"),
    ]
    stream = Stream(FIRST)
    stream.observe(e.Tick(at=1.0), samples)
    told = heard(stream, FIRST)
    assert [entry["type"].split(".")[1] for entry in told] == [
        "phase",
        "marked",
        "paused",
        "restored",
        "terminated",
        "forgotten",
        "cancelled",
    ]
    for entry in stream.since(FIRST, 0.0):
        head, data = entry.frame(float).decode().removesuffix("\n\n").split("\n")
        assert head == f"id: {entry.id}"
        assert json.loads(data.removeprefix("data: "))["type"] == entry.type


def test_what_clients_report_is_told() -> None:
    stream = Stream(FIRST)
    common = {"at": 2.0, "program_id": "p", "emitter": "e", "client_at": 1.0}
    for event in (
        e.ActingStarted(**common, seq=1, call_id="c", tool="bash", expected_s=3.0),
        e.ActingFinished(**common, seq=2, call_id="c", ok=False),
        e.HeartbeatReceived(**common, seq=5),
    ):
        stream.observe(event, [])
    envelope = {"at": 102.0, "program_id": "p"}
    assert [entry | {"id": 0} for entry in heard(stream, FIRST)] == [
        {"id": 0, "type": "acting.started", **envelope, "call_id": "c", "tool": "bash", "expected_s": 3.0},
        {"id": 0, "type": "acting.finished", **envelope, "call_id": "c", "ok": False},
    ]


def test_what_becomes_of_resources_and_environments_is_told() -> None:
    stream = Stream(FIRST)
    whose = {"program_id": "p", "generation": 2}
    box = {"kind": "container", "ref": "box", "host": "h", "keep": False, "reason": "its program is over"}
    ready = {"state": "ready", "container_id": "c1", "reason": "prepared in 2.0 s"}
    tick = e.Tick(at=2.0)
    stream.observe(tick, [d.ResourceChanged(**whose, **box, state="reclaiming")])
    stream.observe(tick, [d.EnvironmentChanged(**whose, **ready)])
    envelope = {"at": 102.0, **whose}
    assert [entry | {"id": 0} for entry in heard(stream, FIRST)] == [
        {"id": 0, "type": "resource.reclaiming", **envelope, **box, "state": "reclaiming"},
        {"id": 0, "type": "environment.ready", **envelope, **ready},
    ]


def test_a_slow_listener_is_told_what_it_missed_and_goes_on() -> None:
    stream = Stream(FIRST, size=3)
    opened(stream, *"abcdefg")
    told = heard(stream, FIRST + 1)
    assert told[0] == {"id": 1003, "at": 100.0, "type": "stream.gap", "program_id": None, "missed": 3}
    assert [entry["program_id"] for entry in told[1:]] == ["e", "f", "g"]
    # Resuming from the gap itself repeats nothing and misses nothing.
    assert [entry["program_id"] for entry in heard(stream, told[0]["id"] + 1)] == ["e", "f", "g"]


@pytest.mark.parametrize("cursor", [0, 5, FIRST + 500])
def test_an_id_of_another_life_gets_all_there_is(cursor: int) -> None:
    stream = Stream(FIRST)
    opened(stream, "a")
    told = heard(stream, cursor)
    assert [(entry["type"], entry.get("missed")) for entry in told] == [
        ("stream.gap", None),
        ("program.opened", None),
    ]


def test_reading_is_in_portions() -> None:
    stream = Stream(FIRST)
    opened(stream, *(f"p{index}" for index in range(10)))
    cursor, portions = FIRST, []
    while entries := stream.since(cursor, 0.0, most=4):
        portions.append(len(entries))
        cursor = entries[-1].id + 1
    assert portions == [4, 4, 2]


async def test_waiting_ends_with_an_entry_a_close_or_the_time() -> None:
    stream = Stream(FIRST)
    await stream.wait(FIRST, 0.01)
    waiter = asyncio.create_task(stream.wait(FIRST, 30))
    await asyncio.sleep(0)
    opened(stream, "a")
    await asyncio.wait_for(waiter, 5)
    await stream.wait(FIRST, 30)  # there is one already
    waiter = asyncio.create_task(stream.wait(FIRST + 1, 30))
    await asyncio.sleep(0)
    stream.close()
    await asyncio.wait_for(waiter, 5)
