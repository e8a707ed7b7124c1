"""A run as coloured segments: one lane a program, times in seconds since the run began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.demo.records import Acted, Called, Closed, Opened
from thunder_server.demo.run import Run

_NOTICEABLE_S = 0.005  # a call that the server held for less was not held


class Activity(StrEnum):
    REASONING = "reasoning"  # a call runs at an engine
    WAITING = "waiting"  # a call is held by the server
    ACTING = "acting"  # a tool runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``tokens`` is the program's context meanwhile; ``backend`` is where it runs or, while it acts, where
    its context was last. ``call`` are the figures behind a call's segments."""

    start: float
    end: float
    activity: Activity
    tokens: int
    backend: int | None = None
    tool: str | None = None
    call: Called | None = None


@dataclass(slots=True, kw_only=True)
class Lane:
    """A program from its opening to its end. ``paused`` are the times it spent in the global queue."""

    program: str
    name: str
    parent: str | None
    opened: float
    closed: float
    segments: list[Segment] = field(default_factory=list)
    paused: list[tuple[float, float]] = field(default_factory=list)


def recomputed_tokens(call: Called, block_size: int) -> int:
    """What an engine computed again of a prompt although it had computed it for this program before.

    An engine keeps whole blocks, so that the last, unfinished one is no loss. Without the engine's word on
    what was cached nothing is known, and nothing is counted.
    """
    if call.cached_tokens is None:
        return 0
    keepable = call.reusable_tokens // block_size * block_size
    return max(0, keepable - call.cached_tokens)


def draw(run: Run) -> list[Lane]:
    """Lanes in the order in which the programs opened."""
    lanes = {
        opened.program: Lane(
            program=opened.program,
            name=opened.name,
            parent=opened.parent,
            opened=opened.at - run.started,
            closed=run.ended - run.started,
        )
        for opened in run.of(Opened)
    }
    for closed in run.of(Closed):
        lanes[closed.program].closed = closed.at - run.started
    dispatches = _dispatches(run)
    places: dict[str, int] = {}
    contexts: dict[str, int] = defaultdict(int)
    for record in run.records:
        lane = lanes[record.program]
        if isinstance(record, Called):
            place = run.backends.index(record.backend) if record.backend in run.backends else None
            lane.segments += _call(record, run.started, place, dispatches[record.program])
            contexts[record.program] = record.prompt_tokens + record.completion_tokens
            if place is not None:
                places[record.program] = place
        elif isinstance(record, Acted):
            lane.segments.append(
                Segment(
                    start=record.started - run.started,
                    end=record.ended - run.started,
                    activity=Activity.ACTING,
                    tokens=contexts[record.program],
                    backend=places.get(record.program),
                    tool=record.tool,
                )
            )
    for lane in lanes.values():
        lane.segments.sort(key=lambda segment: segment.start)
    _add_pauses(run, lanes)
    return list(lanes.values())


def _dispatches(run: Run) -> dict[str, list[float]]:
    """When the server sent each program's calls on, in order."""
    times: dict[str, list[float]] = defaultdict(list)
    for transition in run.transitions:
        if transition["type"] == "call.dispatched":
            times[transition["program_id"]].append(transition["at"])
    return times


def _call(call: Called, zero: float, place: int | None, dispatches: Sequence[float]) -> list[Segment]:
    tokens = call.prompt_tokens + call.completion_tokens
    begun = call.sent
    if call.wait_s > _NOTICEABLE_S:
        # The server knows when; what the answer says leaves out how long the call was on its way to it.
        begun = max((at for at in dispatches if at <= call.answered), default=call.dispatched)
        begun = max(begun, call.dispatched)
    segments = [
        Segment(
            start=begun - zero,
            end=call.answered - zero,
            activity=Activity.REASONING,
            tokens=tokens,
            backend=place,
            call=call,
        )
    ]
    if begun > call.sent:
        segments.append(
            Segment(
                start=call.sent - zero, end=begun - zero, activity=Activity.WAITING, tokens=tokens, call=call
            )
        )
    return segments


def _add_pauses(run: Run, lanes: dict[str, Lane]) -> None:
    since: dict[str, float] = {}
    for transition in run.transitions:
        program = transition.get("program_id")
        at = transition["at"] - run.started
        if program not in lanes:
            continue
        if transition["type"] == "program.paused":
            since.setdefault(program, at)
        elif transition["type"] in ("program.restored", "program.terminated") and program in since:
            lanes[program].paused.append((since.pop(program), at))
    for program, start in since.items():
        lanes[program].paused.append((start, lanes[program].closed))
