"""What programs hold, on disk: so that a server that was killed reclaims it after its next start.

An append-only file of JSON lines. Each line goes to the operating system before its cause is answered, so
nothing that a client was told is lost when the server dies. It is not forced to the disk: when the whole
machine dies, its processes and containers die too, and what remains of them carries its program's label. A
last line that broke off is dropped. The file is written anew, with nothing but what is still held, at every
start and whenever it has grown to several times that.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from thunder_server.core import decisions as d
from thunder_server.core import resource_events as e
from thunder_server.core.events import EnvironmentWanted, Event, Outcome
from thunder_server.core.resources import REMEMBERED, ResourceState, ThingKey
from thunder_server.core.scheduler import Scheduler

log = logging.getLogger(__name__)

VERSION: Final = 1
SLACK: Final = 1_000
"""Lines beyond four times what is held, before the file is written anew."""
FIELDS: Final = ("name", "group", "parent_id", "priority", "lease_s")
BOUND_TO_BOOT: Final = frozenset({"process", "port"})
"""Kinds that no restart of the machine survives: the same names mean others then."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

Line = dict[str, Any]


def default_path(environ: Mapping[str, str], port: int) -> Path | None:
    """Where the server on this port keeps its journal if nobody says; ``None`` for one that takes any port.

    >>> default_path({"XDG_STATE_HOME": "/home/me/state"}, 8300)
    PosixPath('/home/me/state/thunder/serve-8300.jsonl')
    """
    home = environ.get("XDG_STATE_HOME") or (environ.get("HOME", "") and f"{environ['HOME']}/.local/state")
    return Path(home) / "thunder" / f"serve-{port}.jsonl" if home and port else None


class JournalError(Exception):
    """The file cannot be used; the text says why and what to do."""


@dataclass(slots=True)
class Record:
    """One generation of a program, as the lines so far tell it."""

    opening: Line
    end: Line | None = None
    held: dict[tuple[str, str, str | None], Line] = field(default_factory=dict)
    pins: dict[tuple[str, str, str | None], Line] = field(default_factory=dict)
    environment: Line | None = None

    def lines(self) -> Iterator[Line]:
        """The lines that tell it, as few as there can be."""
        yield self.opening
        yield from self.held.values()
        yield from self.pins.values()
        if self.environment is not None:
            yield self.environment
        if self.end is not None:
            yield self.end


class Book:
    """All records in which something is still held."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], Record] = {}

    def take(self, line: Line) -> None:
        """Take in one line. Raises KeyError or TypeError for one that is none of ours."""
        identity = (line["id"], line["gen"])
        if line["do"] == "open":
            self.records.setdefault(identity, Record(line))
            return
        record = self.records.get(identity)
        if record is None:
            return
        match line["do"]:
            case "hold":
                key = _key(line)
                record.held[key] = line
                if line["state"] not in REMEMBERED:
                    del record.held[key]
                    record.pins.pop(key, None)
            case "pin":
                record.pins[_key(line)] = line
            case "environment":
                record.environment = line
            case "end":
                record.end = line
        if not record.held and (record.environment is None or record.end is not None):
            del self.records[identity]

    def lines(self) -> Iterator[Line]:
        for record in self.records.values():
            yield from record.lines()

    def __len__(self) -> int:
        return sum(2 + len(record.held) + len(record.pins) for record in self.records.values())


class Journal:
    """The file of one server, and an observer of its runtime.

    ``unix`` takes the server's clock to Unix seconds. Raises `JournalError` if the file cannot be read or
    written, or is another server's.
    """

    def __init__(self, path: Path, scheduler: Scheduler, unix: Callable[[float], float]) -> None:
        if path.is_dir():
            path /= "thunder.jsonl"
        self.path: Final = path
        self._scheduler = scheduler
        self._unix = unix
        self._book = Book()
        self._written = 0
        self._failing = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(path.name + ".lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
            self._file = self._rewritten()
        except BlockingIOError:
            self._lock.close()
            raise JournalError(f"{path} is in use by another server; give this one its own --state") from None
        except OSError as refused:
            reason = refused.strerror or refused
            raise JournalError(f"{path}: {reason}; choose another place with --state") from refused

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        self._lock.close()

    # --- reading

    def recovered(self, at: float) -> list[e.ProgramRecovered]:
        """What an earlier run left, as events: first the programs that may live on, then those that ended."""
        offset = at - self._unix(at)
        records = sorted(self._book.records.items(), key=lambda entry: entry[1].end is not None)
        return [_recovered(identity, record, at, offset) for identity, record in records]

    def _read(self) -> None:
        if not self.path.exists():
            return
        same_boot = True
        for number, text in enumerate(self.path.read_text("utf-8", errors="replace").splitlines(), 1):
            try:
                line = json.loads(text)
                if line["do"] == "begin":
                    same_boot = line["boot"] == _boot_id()
                elif same_boot or line.get("kind") not in BOUND_TO_BOOT:
                    self._book.take(line)
            except (ValueError, LookupError, TypeError, AttributeError):
                log.warning("%s: line %d cannot be read and is left out", self.path, number)

    # --- writing

    def observe(self, event: Event, decided: Sequence[d.Decision]) -> None:
        """Note what has changed: the runtime's observer."""
        lines = [line for decision in decided for line in self._about(decision, event.at)]
        if isinstance(event, e.ResourceObserved) and event.pin is not None:
            lines += self._seen(event)
        if lines:
            self._append(lines)

    def _about(self, decision: d.Decision, at: float) -> Iterator[Line]:
        match decision:
            case d.ResourceChanged(program_id=program_id, generation=generation):
                yield from self._opening(program_id, generation)
                yield {
                    **_whose(program_id, generation),
                    "do": "hold",
                    "kind": decision.kind,
                    "ref": decision.ref,
                    "host": decision.host,
                    "keep": decision.keep,
                    "state": decision.state,
                }
            case d.EnvironmentChanged(program_id=program_id, generation=generation):
                yield from self._opening(program_id, generation)
                yield from self._environment(decision)
            case d.Terminate(program_id=program_id, generation=generation):
                if (program_id, generation) in self._book.records:
                    ended = {"at": self._unix(at), "outcome": decision.outcome}
                    yield {**_whose(program_id, generation), "do": "end", **ended}

    def _opening(self, program_id: str, generation: int) -> Iterator[Line]:
        if (program_id, generation) in self._book.records:
            return
        line: Line = {**_whose(program_id, generation), "do": "open"}
        program = self._scheduler.program(program_id)
        if program is not None and program.generation == generation:
            line["at"] = self._unix(program.began_at)
            line |= {name: getattr(program, name) for name in FIELDS if getattr(program, name) is not None}
        yield line

    def _environment(self, decision: d.EnvironmentChanged) -> Iterator[Line]:
        program = self._scheduler.program(decision.program_id)
        if program is not None and program.generation == decision.generation and program.environment:
            wanted = program.environment.wanted
            yield {
                **_whose(decision.program_id, decision.generation),
                "do": "environment",
                "state": decision.state,
                "container_id": decision.container_id,
                "image": wanted.image,
                "host": wanted.host,
                "spec": dict(wanted.spec),
            }

    def _seen(self, event: e.ResourceObserved) -> Iterator[Line]:
        thing = self._scheduler.ledger.holdings.things.get(ThingKey(event.kind, event.ref, event.host))
        for owner in thing.holdings if thing is not None else ():
            yield {
                **_whose(owner.program_id, owner.generation),
                "do": "pin",
                "kind": event.kind,
                "ref": event.ref,
                "host": event.host,
                "pin": event.pin,
                "brought": event.brought,
            }

    def _append(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._book.take(line)
        try:
            self._file.write("".join(map(_text, lines)))
            self._file.flush()
            self._written += len(lines)
            if self._written > SLACK + 4 * len(self._book):
                self._file.close()
                self._file = self._rewritten()
            self._failing = False
        except OSError:
            if not self._failing:
                log.exception("%s: until it can be written, a restart may leave things behind", self.path)
            self._failing = True

    def _rewritten(self) -> TextIO:
        """The file with nothing but what is held, open for more."""
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(_text({"do": "begin", "version": VERSION, "boot": _boot_id()}))
            file.writelines(map(_text, self._book.lines()))
            file.flush()
            os.fsync(file.fileno())  # before it takes the place of the one that is known to be whole
        fresh.replace(self.path)
        self._written = 0
        return self.path.open("a", encoding="utf-8")


def _recovered(identity: tuple[str, int], record: Record, at: float, offset: float) -> e.ProgramRecovered:
    opening, end, environment = record.opening, record.end, record.environment
    wanted, container_id = None, None
    if environment is not None and end is None:
        wanted = EnvironmentWanted(
            image=environment["image"], host=environment["host"], spec=environment["spec"]
        )
        container_id = environment["container_id"]
    resources = []
    for (kind, ref, host), line in record.held.items():
        seen = record.pins.get((kind, ref, host), {})
        resources.append(
            e.RecoveredResource(
                kind=kind,
                ref=ref,
                host=host,
                keep=line["keep"] or line["state"] == ResourceState.KEPT,
                pin=seen.get("pin"),
                brought=seen.get("brought"),
            )
        )
    return e.ProgramRecovered(
        at=at,
        program_id=identity[0],
        generation=identity[1],
        opened_at=opening["at"] + offset if "at" in opening else at,
        ended_at=None if end is None else end["at"] + offset,
        outcome=Outcome.LEASE_EXPIRED if end is None else Outcome(end["outcome"]),
        fields={name: opening[name] for name in FIELDS if name in opening},
        resources=tuple(resources),
        environment=wanted,
        container_id=container_id,
    )


def _whose(program_id: str, generation: int) -> Line:
    return {"id": program_id, "gen": generation}


def _key(line: Line) -> tuple[str, str, str | None]:
    return line["kind"], line["ref"], line["host"]


def _text(line: Line) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def _boot_id() -> str:
    """Which start of the machine this is; empty where it does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
