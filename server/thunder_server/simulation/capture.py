"""Captures of a server's event stream: ``curl -N http://server:8300/thunder/v1/stream > capture``.

The file holds the server-sent events as they came, or only their JSON, one a line. Of the stream, programs
and calls are used: ``program.opened``, ``program.phase``, ``call.arrived``, ``call.finished``.

The stream tells sizes, not text. So a prompt that is at least as long as the one before it is taken to begin
with it, and one that is shorter to share what the engine found in its cache.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from thunder_server.simulation.jsonlines import Record, TraceError, parse
from thunder_server.simulation.traffic import Call, Source, Traffic, to_starts

_PLUMBING = re.compile(r"(id|event|retry)?:")  # lines of server-sent events that carry nothing for us
_COMPLETED = "completed"


class Left(StrEnum):
    """What of a capture cannot be replayed, and is left out."""

    TWICE = "entry that is there twice"
    CUT_OFF = "entry cut off at the end of the file"
    FAILED = "call that failed"
    NO_USAGE = "call without usage"
    EMPTY = "call without a prompt or an output"
    UNFINISHED = "call whose end is not in the capture"
    UNBEGUN = "call whose beginning is not in the capture"


def entries(lines: Iterable[str], name: str, left: Counter[str]) -> Iterator[Record]:
    """The entries of a capture, in its order."""
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        text = line.strip().removeprefix("data:").strip()
        if not text or _PLUMBING.match(text):
            continue
        try:
            yield Record(parse(text, where), where)
        except TraceError:
            if line.endswith("\n"):
                raise
            left[Left.CUT_OFF] += 1  # whoever captured was stopped in the middle of a line


@dataclass(slots=True)
class _Program:
    calls: list[Call] = field(default_factory=list)
    tools: bool = False  # its client tells of its tools
    model: str = "unknown"


@dataclass(frozen=True, slots=True)
class _Arrival:
    program: str
    at: float


def read(records: Iterable[Record], left: Counter[str]) -> Traffic:
    """Traffic of the entries of one or more captures of the same server, in their order."""
    reader = _Reader(left)
    for record in records:
        reader.take(record)
    return reader.traffic()


class _Reader:
    def __init__(self, left: Counter[str]) -> None:
        self._left = left
        self._ids: set[int] = set()
        self._generations: Counter[str] = Counter()
        self._programs: dict[str, _Program] = {}
        self._arrivals: dict[str, _Arrival] = {}
        self._gaps = 0

    def take(self, record: Record) -> None:
        if "id" in record:
            number = record.number("id")
            if number in self._ids:
                self._left[Left.TWICE] += 1
                return
            self._ids.add(number)
        match record.text("type"):
            case "program.opened":
                self._generations[record.text("program_id")] = record.number("generation", 1)
            case "program.phase":
                if "tool" in record:
                    self._program(record.text("program_id")).tools = True
            case "call.arrived":
                self._arrived(record)
            case "call.finished":
                self._finished(record)
            case "call.refused" | "call.cancelled":
                if self._arrivals.pop(record.text("call_id"), None):
                    self._left[Left.FAILED] += 1
            case "stream.gap" if "missed" in record:  # else the stream merely began anew
                self._gaps += 1
            case _:
                pass

    def _program(self, program_id: str) -> _Program:
        generation = self._generations[program_id]
        name = f"{program_id}#{generation}" if generation > 1 else program_id
        return self._programs.setdefault(name, _Program())

    def _arrived(self, record: Record) -> None:
        program_id, call_id = record.text("program_id"), record.text("call_id")
        if call_id in self._arrivals:
            raise record.wrong("call_id", f"{call_id!r} has arrived already")
        self._arrivals[call_id] = _Arrival(program_id, record.seconds("at"))
        self._program(program_id).model = record.text("model", "unknown")

    def _finished(self, record: Record) -> None:
        arrival = self._arrivals.pop(record.text("call_id"), None)
        if arrival is None:
            self._left[Left.UNBEGUN] += 1
            return
        ended = record.seconds("at")
        if ended < arrival.at:
            raise record.wrong("at", f"goes back in time ({ended} after {arrival.at})")
        if record.text("end") != _COMPLETED:
            self._left[Left.FAILED] += 1
        elif "prompt_tokens" not in record or "completion_tokens" not in record:
            self._left[Left.NO_USAGE] += 1
        elif not (prompt := record.tokens("prompt_tokens")) or not (
            output := record.tokens("completion_tokens")
        ):
            self._left[Left.EMPTY] += 1
        else:
            cached = record.tokens("cached_tokens") if "cached_tokens" in record else None
            if (cached or 0) > prompt:
                raise record.wrong("cached_tokens", f"is {cached}, more than the prompt holds")
            self._program(arrival.program).calls.append(
                Call(
                    at=arrival.at,
                    ended=ended,
                    prompt_tokens=prompt,
                    output_tokens=output,
                    cached_tokens=cached,
                )
            )

    def traffic(self) -> Traffic:
        self._left[Left.UNFINISHED] += len(self._arrivals)
        programs = {name: program for name, program in self._programs.items() if program.calls}
        for program in programs.values():
            program.calls.sort(key=lambda call: call.at)
            program.calls = [
                call if first is None else replace(call, shared_tokens=_shared(first, call))
                for first, call in zip([None, *program.calls], program.calls, strict=False)
            ]
        notes = []
        if self._gaps:
            notes.append(f"the capture has {self._gaps} gaps: entries are missing where it was too slow")
        telling = sum(program.tools for program in programs.values())
        if telling < len(programs):
            notes.append(f"{len(programs) - telling} of {len(programs)} programs did not tell of their tools")
        return Traffic(
            source=Source.STREAM,
            starts=to_starts((name, program.model, 0, program.calls) for name, program in programs.items()),
            calls={name: program.calls for name, program in programs.items()},
            skipped={kind: number for kind, number in self._left.items() if number},
            notes=tuple(notes),
        )


def _shared(before: Call, call: Call) -> int:
    if call.prompt_tokens >= before.prompt_tokens:
        return before.prompt_tokens
    return min(call.cached_tokens or 0, call.prompt_tokens)
