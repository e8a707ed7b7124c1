"""The one background sender of control traffic: in order, in batches, never in the agent's way."""

from __future__ import annotations

import http.client
import itertools
import logging
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Final

from thunder_sdk import wire
from thunder_sdk._atomic import Once
from thunder_sdk._config import API_KEY, BASE_URL, Config
from thunder_sdk._delivery import Deliveries, Patience
from thunder_sdk._exceptions import ThunderConfigError, ThunderConnectionError, ThunderError
from thunder_sdk._http import Answer, Connection
from thunder_sdk._outbox import Close, Message, Open, Outbox, Report
from thunder_sdk._pulse import Pulse
from thunder_sdk._sources import Sources

logger = logging.getLogger("thunder_sdk")

DISCOVERY: Final = 5.0  # s that control traffic waits to learn from a response where the server is
BACKOFF_FIRST: Final = 0.1  # s, doubled with every failure
BACKOFF_MAX: Final = 5.0
_RETRIED: Final = frozenset({408, 429})
_REFUSED: Final = frozenset({401, 403})


class Health(StrEnum):
    """What the sender knows about the server.

    unknown → reachable ⇄ unreachable; from any of them → stopped, for good.
    """

    UNKNOWN = "unknown"
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"  # it refuses our key


_DEAF: Final = frozenset({Health.UNREACHABLE, Health.STOPPED})


class Sender:
    """Owns the thread, the connection and what waits for them. One per process and `init`.

    `put` and `delivery` may be called from anywhere, signal handlers included: they touch only deques and a
    SimpleQueue. `step` belongs to the thread, or to whoever drives a sender without one.
    """

    def __init__(self, config: Config, sources: Sources, pulse: Pulse, *, threaded: bool = True) -> None:
        self.emitter = sources.new_hex()
        self.health = Health.UNKNOWN
        self.root = config.base_url
        self.outbox = Outbox()
        self._config = config
        self._sources = sources
        self._pulse = pulse
        self._threadless = not threaded
        self._deliveries = Deliveries()
        self._thread: int | None = None
        self._doorbell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._started = Once()
        self._stopped = Once()
        self._connection: Connection | None = None
        self._sequence = itertools.count(1)
        self._first_queued: float | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._refused_with = 0
        self._afterwards = ExitStack()

    # --- from anywhere ---------------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        """Queues `message` and returns at once."""
        if self.health is not Health.STOPPED:
            self.outbox.put(message)
            self.ring()
        if isinstance(message, Close) and self.health in _DEAF:
            message.subject.unheard()

    def ring(self) -> None:
        """Wakes the thread, starting it if need be."""
        if not self._threadless and self._started.claim():
            self._start()
        if not self._rung:
            self._rung = True
            self._doorbell.put(None)

    def delivery(self, patience: Patience) -> Future[None]:
        """Done when everything queued so far has left; fails with a ThunderError if it cannot."""
        failure: ThunderError | None = None
        if self._stopped.done:
            failure = _gone()
        elif self.health is Health.UNREACHABLE and patience is Patience.CALM:
            failure = self._unreachable()
        elif self.outbox or self.health is Health.STOPPED:
            waiting = self._deliveries.add(self.outbox.mark(), patience)
            self.ring()
            return waiting
        done: Future[None] = Future()
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
        return done

    def flush(self, timeout: float, patience: Patience = Patience.EAGER) -> ThunderError | None:
        """Blocks until everything queued so far has left; what went wrong, None if nothing did.

        In the sender's own thread, where the garbage collector may end a generator of the agent's, it does
        not wait for itself.
        """
        if self.runs_here:
            timeout = 0.0
        elif self._threadless:
            patience = Patience.CALM if patience is Patience.CALM else Patience.EAGER
        future = self.delivery(patience)
        while self._threadless and not future.done():
            self.step()
        return failure_of(future, timeout)

    @property
    def runs_here(self) -> bool:
        """Whether this is the sender's thread."""
        return threading.get_ident() == self._thread

    def stop(self) -> None:
        """Ends the thread when it has finished what it is doing. Nothing more is sent."""
        self._stopped.claim()
        if self._threadless:
            self._hang_up()
        elif self._started.done:
            self.ring()

    def discovered(self, root: str) -> None:
        """A server of ours answered at `root`: control traffic goes there if nobody has said where."""
        if self._config.base_url is None and self.root != root and self.health is not Health.REACHABLE:
            self.root = root
            self._retry_at = 0.0
            self.ring()

    def disown(self) -> None:
        """In a forked child, which has a copy of the parent's socket."""
        if self._connection is not None:
            self._connection.disown()

    # --- the thread ------------------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="thunder-sdk", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # an interpreter on its way out starts no thread: `flush` does the work
            self._threadless = True
            return
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its children leave without atexit
            finalizer = multiprocessing.Finalize(None, self.flush, args=(2.0,), exitpriority=0)
            self._afterwards.callback(finalizer.cancel)

    def _run(self) -> None:
        self._thread = threading.get_ident()
        while not self._stopped.done:
            try:
                pause = self.step()
            except Exception:
                with suppress(Exception):
                    logger.exception("thunder: a report could not be sent; please report this as a bug")
                self.outbox.settle()
                continue
            if pause != 0.0:
                try:
                    self._doorbell.get(timeout=pause)
                except Empty:
                    continue
        self._deliveries.fail(_gone(), *Patience)
        self._hang_up()
        self._afterwards.close()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def step(self) -> float | None:
        """Does the next thing that is due. Seconds until the one after it, None if that needs a ring."""
        self._rung = False  # before looking: whoever queues from here on rings again
        now = self._sources.monotonic()
        beat_at = self._pulse.beat(now)
        if self.health is Health.STOPPED:
            self.outbox.clear()
            self._deliveries.fail(self._refusal(), *Patience)
            return None
        pause = self._deliver(now)
        if pause == 0.0 or beat_at is None:
            return pause
        until_beat = max(0.0, beat_at - now)
        return until_beat if pause is None else min(pause, until_beat)

    def _deliver(self, now: float) -> float | None:
        if not self.outbox:
            self._deliveries.release(self.outbox.settled_through())
            return None
        if self.health is Health.UNREACHABLE:
            self._deliveries.fail(self._unreachable(), Patience.CALM)
        hold = self._hold(now)
        if hold > 0:
            return hold
        batch = self.outbox.take()
        try:
            answer = self._exchange(batch)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self._failed(f"{type(error).__name__}: {error}")
            return 0.0
        if answer.status >= 500 or answer.status in _RETRIED:
            self._failed(f"it answered {answer.status}")
        elif answer.status in _REFUSED:
            self._refused(answer.status)
        else:
            self._answered(batch, answer)
        return 0.0

    def _hold(self, now: float) -> float:
        """Seconds that the next request waits: for a hint where to send it, or for the server to return."""
        if self._deliveries.eager:
            return 0.0
        if self.root is None and not self._deliveries:
            if self._first_queued is None:
                self._first_queued = now
            return self._first_queued + DISCOVERY - now
        return self._retry_at - now

    def _exchange(self, batch: list[Message]) -> Answer:
        connection = self._connected()
        match batch[0]:
            case Open(subject, fields, began):
                # Both on our clock: how long ago it began, and, for a server that shares it, exactly when.
                headers = {
                    wire.AGE: f"{self._sources.monotonic() - began:.6f}",
                    wire.SENT_AT: f"{self._sources.wall():.6f}",
                }
                return connection.request("PUT", wire.program_path(subject.id), fields, headers)
            case Close(subject, outcome):
                if gone := subject.reclaimed():
                    answer = connection.request("POST", wire.EVENTS_PATH, self._batch(gone))
                    if answer.status >= 300:
                        return answer
                path = f"{wire.program_path(subject.id)}?outcome={outcome}"
                if subject.confirmed_generation is not None:
                    path += f"&generation={subject.confirmed_generation}"
                return connection.request("DELETE", path)
            case _:
                return connection.request("POST", wire.EVENTS_PATH, self._batch(batch))

    def _connected(self) -> Connection:
        if self.root is None:
            self.root = self._config.root
        if self._connection is None or self._connection.root != self.root:
            known = self.root == self._config.root
            if self._connection is not None:
                self._connection.close()
            self._connection = Connection(
                self.root,
                api_key=self._config.api_key if known else None,
                verify=self._config.verify,
                timeout=self._config.timeout,
            )
        return self._connection

    def _batch(self, batch: list[Message]) -> dict[str, object]:
        events = []
        for message in batch:
            assert isinstance(message, Report)
            if message.seq is None:
                message.seq = next(self._sequence)
            events.append({"program_id": message.subject.id, "seq": message.seq, **message.payload})
        return {"emitter": self.emitter, "events": events}

    # --- outcomes --------------------------------------------------------------------------------------

    def _answered(self, batch: list[Message], answer: Answer) -> None:
        if self.health is Health.UNREACHABLE:
            lost = f"; {self.outbox.dropped} reports were lost" if self.outbox.dropped else ""
            tell(logging.INFO, "thunder: the server at %s is back%s", self.root, lost)
            self.outbox.dropped = 0
        self.health = Health.REACHABLE
        self._failures, self._retry_at = 0, 0.0
        if 200 <= answer.status < 300:
            _teach(batch, answer.body)
        else:
            message = _message_of(answer.body)
            tell(
                logging.WARNING,
                "thunder: the server answered %d, %d dropped%s", answer.status, len(batch), message,
            )  # fmt: skip
        self.outbox.settle()
        self._deliveries.release(self.outbox.settled_through())

    def _failed(self, why: str) -> None:
        if self.health is not Health.UNREACHABLE:
            self.health = Health.UNREACHABLE
            tell(
                logging.WARNING,
                "thunder: the server at %s cannot be used (%s). Agents go on; what they report is sent when "
                "it is back. Is `thunder serve` running, and %s right?", self.root, why, BASE_URL,
            )  # fmt: skip
        self._retry_at = self._sources.monotonic() + min(BACKOFF_MAX, BACKOFF_FIRST * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._say_unheard()
        self._deliveries.failed(self._unreachable())

    def _refused(self, status: int) -> None:
        self.health = Health.STOPPED
        self._refused_with = status
        tell(logging.WARNING, "%s; nothing more is sent", self._refusal())
        self._say_unheard()

    def _say_unheard(self) -> None:
        """Tells programs whose end waits to be told that nobody hears it."""
        for message in self.outbox.waiting():
            if isinstance(message, Close):
                message.subject.unheard()

    def _unreachable(self) -> ThunderConnectionError:
        return ThunderConnectionError(f"the thunder server at {self.root} cannot be reached")

    def _refusal(self) -> ThunderConfigError:
        return ThunderConfigError(
            f"the thunder server at {self.root} answered {self._refused_with}: set {API_KEY} or api_key="
        )


def failure_of(delivery: Future[None], timeout: float) -> ThunderError | None:
    """Blocks for at most `timeout` seconds; the error of a `Sender.delivery`, None if it succeeded."""
    try:
        delivery.result(timeout)
    except TimeoutError:
        delivery.cancel()
        return ThunderConnectionError("the thunder server did not take everything in time")
    except ThunderError as error:
        return error
    return None


def _gone() -> ThunderConnectionError:
    return ThunderConnectionError("the SDK has been shut down or set up anew meanwhile")


def tell(level: int, message: str, *args: object) -> None:
    """Logs from a thread of ours, which no handler of the application's may end."""
    with suppress(Exception):
        logger.log(level, message, *args)


def _teach(batch: list[Message], body: Mapping[str, object]) -> None:
    """Hands every program of `batch` what the server says about it, and logs what it did not take."""
    if isinstance(batch[0], Report):
        programs = body.get("programs")
        states: Mapping[str, object] = programs if isinstance(programs, dict) else {}
        errors = body.get("errors")
        for error in errors if isinstance(errors, list) else []:
            tell(logging.WARNING, "thunder: the server did not take an event: %s", error)
    else:
        states = {batch[0].subject.id: body}
    for subject in {id(message.subject): message.subject for message in batch}.values():
        state = states.get(subject.id)
        if isinstance(state, dict):
            status, generation, outcome = (state.get(key) for key in ("status", "generation", "outcome"))
            if isinstance(status, str) and isinstance(generation, int):
                subject.learn(status, generation, outcome if isinstance(outcome, str) else None)


def _message_of(body: Mapping[str, object]) -> str:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return f": {message}" if message else ""
