"""``GET /thunder/v1/stream``: every transition, told as it happens, to whoever listens.

One bounded ring holds the latest transitions; a listener is nothing but a position in it. So a slow listener
costs no memory and holds up nobody: what the ring has dropped meanwhile it is told as one ``stream.gap``.

Entry ids rise, also across restarts of the server (they start at its time in microseconds), so that a client
which resumes with ``Last-Event-ID`` never mistakes new entries for ones it has seen.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from thunder_server.core import decisions as d
from thunder_server.core import events as e

RING: Final = 20_000

_DECISIONS: Final[dict[type[d.Decision], str]] = {
    d.Opened: "program.opened",
    d.PhaseChanged: "program.phase",
    d.Marked: "program.marked",
    d.Pause: "program.paused",
    d.Restore: "program.restored",
    d.Terminate: "program.terminated",
    d.Held: "dispatch.held",
    d.Resumed: "dispatch.resumed",
    d.Forget: "program.forgotten",
    d.Dispatch: "call.dispatched",
    d.Refuse: "call.refused",
    d.Cancel: "call.cancelled",
    d.Touch: "program.touched",
    d.Preferred: "router.preferred",
}
# What clients report, told as it comes: a report that is sent again is told again.
_REPORTS: Final[dict[type[e.Event], str]] = {
    e.ActingStarted: "acting.started",
    e.ActingFinished: "acting.finished",
}
# Decisions and events speak of many things in the core's terms; readers want few of them, under their names.
_RENAMED: Final = {"backend_id": "backend", "refusal": "code"}
_ARRIVAL: Final = ("call_id", "path", "model", "parent_id", "group")
_UNTOLD: Final = ("at", "client_at", "emitter", "seq")


@dataclass(frozen=True, slots=True)
class Entry:
    """One transition. ``subject`` is the core's own record of it, put into words only when somebody reads."""

    id: int
    at: float
    type: str
    program_id: str | None
    subject: d.Decision | e.Event | None
    extra: tuple[tuple[str, Any], ...] = ()

    def payload(self, unix: Callable[[float], float]) -> dict[str, Any]:
        """``{id, at, type, program_id, …}``; ``at`` is Unix seconds."""
        told: dict[str, Any] = {
            "id": self.id,
            "at": round(unix(self.at), 6),
            "type": self.type,
            "program_id": self.program_id,
        }
        subject = self.subject
        names = _ARRIVAL if isinstance(subject, e.CallArrived) else _names(subject)
        for name in names:
            told.setdefault(_RENAMED.get(name, name), getattr(subject, name))
        told.update(self.extra)
        return told

    def frame(self, unix: Callable[[float], float]) -> bytes:
        """The entry as one server-sent event."""
        text = json.dumps(self.payload(unix), separators=(",", ":"))
        return f"id: {self.id}\ndata: {text}\n\n".encode()


def _names(subject: d.Decision | e.Event | None) -> tuple[str, ...]:
    told = () if subject is None else fields(subject)
    return tuple(field.name for field in told if field.name not in _UNTOLD)


def _kind(decision: d.Decision) -> str | None:
    """Under which ``type`` a decision is told; ``None``: not at all."""
    match decision:
        case d.ResourceChanged(state=state):
            return f"resource.{state}"
        case d.EnvironmentChanged(state=state):
            return f"environment.{state}"
        case _:
            return _DECISIONS.get(type(decision))


class Stream:
    """The ring, an observer of the runtime, and the bells of those who wait for more.

    ``first_id`` is the id of the first entry to come.
    """

    def __init__(self, first_id: int, size: int = RING) -> None:
        self._ring: deque[Entry] = deque(maxlen=size)
        self._first_id = self._next_id = first_id
        self._program_of: dict[str, str] = {}  # of live calls: a finished one no longer says whose it was
        self._healthy: dict[str, bool] = {}
        self._bells: set[asyncio.Event] = set()
        self.closed = False

    @property
    def next_id(self) -> int:
        """The id that the next entry will have."""
        return self._next_id

    def observe(self, event: e.Event, decided: Sequence[d.Decision]) -> None:
        """Take in one event and what was decided on it: the runtime's observer."""
        before = self._next_id
        self._take_event(event)
        for decision in decided:
            kind = _kind(decision)
            if kind is not None:
                program_id = getattr(decision, "program_id", None)
                self._append(event.at, kind, program_id, decision)
                if isinstance(decision, d.Refuse | d.Cancel):
                    self._program_of.pop(decision.call_id, None)
        if self._next_id != before:
            self._ring_bells()

    def _take_event(self, event: e.Event) -> None:
        match event:
            case e.CallArrived(call_id=call_id):
                program_id = event.program_id or event.anonymous_id
                self._program_of[call_id] = program_id
                self._append(event.at, "call.arrived", program_id, event)
            case e.CallFinished(call_id=call_id):
                if (owner := self._program_of.pop(call_id, None)) is not None:
                    self._append(event.at, "call.finished", owner, event)
            case e.BackendAdded():
                self._append(event.at, "backend.added", None, event)
            case e.BackendReported(backend_id=backend_id, healthy=healthy):
                if self._healthy.get(backend_id) != healthy:
                    self._healthy[backend_id] = healthy
                    kind = "backend.healthy" if healthy else "backend.unhealthy"
                    self._append(event.at, kind, None, None, (("backend", backend_id),))
            case e.BackendDrained():
                self._append(event.at, "backend.draining", None, event)
            case e.BackendRemoved(backend_id=backend_id):
                self._healthy.pop(backend_id, None)
                self._append(event.at, "backend.removed", None, event)
            case e.ClientEvent(program_id=program_id) if type(event) in _REPORTS:
                self._append(event.at, _REPORTS[type(event)], program_id, event)
            case _:
                pass  # what the core makes of it is told by its decisions

    def _append(
        self,
        at: float,
        kind: str,
        program_id: str | None,
        subject: d.Decision | e.Event | None,
        extra: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self._ring.append(Entry(self._next_id, at, kind, program_id, subject, extra))
        self._next_id += 1

    # --- reading ---------------------------------------------------------------------------------------

    def since(self, cursor: int, at: float, most: int = 256) -> list[Entry]:
        """Up to ``most`` entries from id ``cursor`` on. If some of these are gone (or ``cursor`` is of
        another life of this server), a ``stream.gap`` that says so comes first."""
        oldest = self._ring[0].id if self._ring else self._next_id
        found: list[Entry] = []
        if not oldest <= cursor <= self._next_id:
            # Its id is the one before the oldest, so that whoever resumes from the gap goes on right there.
            missed = oldest - cursor if self._first_id <= cursor < oldest else None
            found.append(Entry(oldest - 1, at, "stream.gap", None, None, (("missed", missed),)))
            cursor = oldest
        start = cursor - oldest
        # By index: near either end a deque finds it at once, and listeners read near the end.
        found.extend(self._ring[index] for index in range(start, min(start + most, len(self._ring))))
        return found

    async def wait(self, cursor: int, timeout: float) -> None:  # noqa: ASYNC109
        """Return once there is an entry ``cursor``, the stream is closed, or ``timeout`` seconds are over."""
        if self._next_id > cursor or self.closed:
            return
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            async with asyncio.timeout(timeout):
                await bell.wait()
        except TimeoutError:
            pass
        finally:
            self._bells.discard(bell)

    def close(self) -> None:
        """Send every listener home: the server stops."""
        self.closed = True
        self._ring_bells()

    def _ring_bells(self) -> None:
        for bell in self._bells:
            bell.set()
