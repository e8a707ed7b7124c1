"""The client's side of a program's life: new, open, closed; its lease; and what the server says about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span

from thunder_sdk import _process, _tracing
from thunder_sdk._atomic import Once
from thunder_sdk._dialects import Identity
from thunder_sdk._exceptions import ThunderConfigError, ThunderStateError
from thunder_sdk._holdings import Holdings, local_site
from thunder_sdk._outbox import Close, Message, Open, Report
from thunder_sdk._sender import logger
from thunder_sdk._spec import Spec
from thunder_sdk.wire import Claim, EventType

OUTCOMES: Final = ("success", "error", "dropped")
_EXPENDABLE: Final = frozenset({EventType.ACTING_STARTED, EventType.ACTING_FINISHED, EventType.HEARTBEAT})


class Life:
    """What happens to a program, seen from one process.

    new → open → closed. Whoever opens it owns it, in that process alone: a forked child holds a handle, as
    `attach` does. An open program whose lease has run out is terminated, though not closed, until its next
    call opens the next generation. Nothing here blocks: it queues.
    """

    def __init__(self, identity: Identity, name: str | None, spec: Spec | None, span: Span | None) -> None:
        self.identity = identity
        self.label = name
        self.spec = spec  # None: a handle on somebody else's program
        self.span = span
        self.last_generation = 1
        self.last_status = "active"
        self.last_outcome: str | None = None
        self.confirmed_generation: int | None = None
        self.holdings = Holdings()
        self._opening, self._closing, self._lapse, self._unheard = Once(), Once(), Once(), Once()
        self._owner: _process.Epoch | None = None
        self._lease = 0.0
        self._renewed_at = 0.0
        self._began = self._opened_at = 0.0  # by the monotonic clock, and by the wall

    @property
    def id(self) -> str:
        """Its id on the wire."""
        return self.identity.id

    @property
    def opened(self) -> bool:
        """Whether it has been opened here."""
        return self._opening.done

    @property
    def closed(self) -> bool:
        """Whether it has been closed here."""
        return self._closing.done

    @property
    def owned(self) -> bool:
        """Whether this process opened it."""
        return self._owner is _process.epoch()

    @property
    def lapsed(self) -> bool:
        """Whether its lease or the server has ended an owned program that nobody closed."""
        if self.closed or not self.owned:
            return False
        if self.last_status != "terminated":
            process = _process.here()
            silent = process.sources.monotonic() - self._renewed_at
            if silent > self._lease and process.config.control:
                self._end_by_server("lease_expired", f"it was silent for {silent:.1f} s")
        return self.last_status == "terminated"

    def require_open(self, what: str) -> None:
        """ThunderStateError once it is closed."""
        if self.closed:
            raise ThunderStateError(
                f"program {self.id} is closed ({self.last_outcome}): {what} it before that"
            )

    def open(self, span_parent: Context | None) -> None:
        """Opens it unless it is; ThunderStateError once it is closed."""
        self.require_open("use")
        if self.spec is None or self.opened:
            return
        process = _process.here()
        # All set before the claim: a signal handler may close it right after.
        self._owner = _process.epoch()
        self._lease = self.spec.lease or process.config.lease
        self._renewed_at = self._began = process.sources.monotonic()
        self._opened_at = process.sources.wall()
        if self._opening.claim():
            if not process.config.disabled:
                self.span = _tracing.start_agent(self.id, self.label, span_parent)
            self._announce()

    def end(self, outcome: str, error: BaseException | None) -> bool:
        """Closes it if that is ours to do; whether there is something on its way to the server."""
        if self.spec is None or (self.opened and not self.owned) or not self._closing.claim():
            return False
        self.last_status, self.last_outcome = "terminated", outcome
        self.holdings.give_ports_back()
        if not self.opened:
            return False
        if self.span is not None:
            _tracing.end(self.span, error, failed=outcome == "error", outcome=outcome)
        process = _process.here()
        process.put(Close(self, outcome))
        return process.config.control

    def report(self, kind: EventType, payload: Mapping[str, object]) -> None:
        """Queues an event; nothing after the end."""
        if self.closed or self.lapsed:
            return
        process = _process.here()
        self._renewed_at = process.sources.monotonic()
        self.holdings.note(kind, payload)
        event = {"type": kind.value, "at": process.sources.wall(), **payload}
        process.put(Report(self, event, expendable=kind in _EXPENDABLE))

    def calling(self) -> None:
        """A call is on its way: after a lapse it opens the next generation."""
        if self.lapsed:
            self.last_status, self.last_outcome = "active", None
            self._lapse = Once()
            self._began = _process.here().sources.monotonic()
            self._announce()

    def beat(self, now: float) -> float | None:
        """Sends a heartbeat if nothing was sent for a third of the lease; when to be asked again."""
        if self.closed or not self.owned or self.lapsed:
            return None
        due = self._renewed_at + self._lease / 3
        if now < due:
            return due
        self.report(EventType.HEARTBEAT, {})
        return now + self._lease / 3

    def learn(self, status: str, generation: int, outcome: str | None) -> None:
        """The server's last word about it. Once closed here, our own word stands."""
        self.confirmed_generation = self.last_generation = generation
        if self.closed:
            return
        if status == "terminated" and self.owned:
            self._end_by_server(outcome, "so says the server")
            return
        returned = self.owned and self.last_status == "terminated"
        self.last_status, self.last_outcome = status, outcome
        if returned:
            self._lapse = Once()
            self._watch()

    def unheard(self) -> None:
        """The server cannot be told of its end: what it declared is removed here, once."""
        if self._unheard.claim():
            process = _process.here()
            claim = Claim(program_id=self.id, opened_at=self._opened_at, ended_at=process.sources.wall())
            process.reclaimer.put(self.holdings, claim, local_site)

    def reclaimed(self) -> list[Message]:
        """Reports on what has been removed here, for a server that is back."""
        at = _process.here().sources.wall()
        released = EventType.RESOURCE_RELEASED.value
        return [
            Report(self, {"type": released, "at": at, "kind": kind, "ref": ref, "host": host}, False)
            for kind, ref, host in self.holdings.gone
        ]

    def _end_by_server(self, outcome: str | None, why: str) -> None:
        self.last_status, self.last_outcome = "terminated", outcome
        if self._lapse.claim():
            logger.warning(
                "thunder: program %s has ended (%s, %s; its lease is %g s). Its next call opens it again",
                self.id, outcome, why, self._lease,
            )  # fmt: skip

    def _announce(self) -> None:
        process = _process.here()
        assert self.spec is not None
        self._renewed_at = process.sources.monotonic()
        process.put(Open(self, self.spec.fields(self.identity, self._lease), self._began))
        self._watch()

    def _watch(self) -> None:
        _process.here().watch(self, self._renewed_at + self._lease / 3)


def checked_outcome(outcome: str) -> str:
    """`outcome` if a caller may end a program with it, else ThunderConfigError."""
    if outcome not in OUTCOMES:
        raise ThunderConfigError(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}")
    return outcome


def outcome_of(error: BaseException | None) -> str:
    """How a block ended that `error` left."""
    match error:
        case None | SystemExit(code=0 | None):
            return "success"
        case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
            return "dropped"
        case BaseException() if type(error).__name__ == "Cancelled":  # trio's
            return "dropped"
        case _:
            return "error"
