"""The only loop: what happens goes into the core as events, what it decides is performed here.

Everything runs on one asyncio event loop and `Runtime.post` is synchronous, so the core sees one event at a
time and its decisions are performed before anything else can happen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends.kv_events import KvEvents
from thunder_server.backends.poller import Poller
from thunder_server.calls import Call, Cut
from thunder_server.core.decisions import (
    Cancel,
    Decision,
    Dispatch,
    Errand,
    Preferred,
    Refuse,
    TokenizersDiffer,
)
from thunder_server.core.events import (
    BackendAdded,
    BackendDrained,
    BackendRemoved,
    BackendReported,
    CallArrived,
    CallConnectFailed,
    CallFinished,
    Event,
    Tick,
)
from thunder_server.core.scheduler import Scheduler
from thunder_server.errands import Errands
from thunder_server.prompt_blocks import PromptBlocks
from thunder_server.upstream import make_session
from thunder_server.warmth import Warmth

log = logging.getLogger(__name__)

Observer = Callable[[Event, Sequence[Decision]], None]
"""Told of every event and what the core decided on it, after those decisions were performed."""

_FIRST_LOOK_S: Final = 2.5
_STALLED_AFTER_S: Final = 30.0
_SHORTEST_SLEEP: Final = 0.001  # the loop's clock ticks in milliseconds: sleeping less would spin


class Runtime:
    """A scheduler at work: the live calls, the backends and their pollers, the clock.

    ``scheduler`` is the core; read its state freely, change it only through `post` and the methods here.
    ``poll_s`` is the seconds between two looks at a backend, ``tokenize_wait_s`` how long a call may wait for
    the tokens of its prompt, if backends tell what they cache; ``keep_warm`` is for schedulers that ask for
    it. Use it as an async context manager, or `start`
    and `stop` it; both belong to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        poll_s: float = 1.0,
        tokenize_wait_s: float = 0.03,
        keep_warm: bool = False,
    ) -> None:
        self.scheduler: Final = scheduler
        self.calls: Final[dict[str, Call]] = {}
        """Waiting and running calls by call id."""
        self.backends: Final[dict[str, Poller]] = {}
        """What this server knows of each backend by backend id: ``.spec`` and the latest ``.reading``."""
        self.kv_events: Final[dict[str, KvEvents]] = {}
        """Those that tell what their prefix caches hold, by backend id."""
        self.prompt_blocks: Final = PromptBlocks(
            lambda: self.http, self.backends, self.kv_events, self.now, wait_s=tokenize_wait_s
        )
        """Tokenizes prompts for them."""
        self.warmth: Final = Warmth(lambda: self.http, self.backends) if keep_warm else None
        """Latest prompts, if they are to be sent again."""
        self.errands: Final = Errands(self.post, self.now, self.unix)
        """Work on resources that is under way, here and at reapers."""
        self.http: aiohttp.ClientSession
        """For all traffic to engines; there from `start` to `stop`."""
        self.stopping = False
        self._poll_s = poll_s
        self._unix_offset = time.time() - time.monotonic()
        self._observers: list[Observer] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self._drains: dict[str, asyncio.TimerHandle] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    # --- time ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the clock that all events carry."""
        return time.monotonic()

    def unix(self, at: float) -> float:
        """Unix seconds of a time on that clock, for the HTTP faces."""
        return at + self._unix_offset

    # --- life ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to look at the backends; returns when each was looked at once, or soon if one hangs."""
        self.http = make_session()
        for poller in self.backends.values():
            poller.start(self.http)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_S):
                await asyncio.gather(*(poller.looked.wait() for poller in self.backends.values()))

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse what waits, give running calls ``grace_s`` seconds to end, cut the rest, let go of all."""
        self.stopping = True
        for call in list(self.calls.values()):
            if call.dispatch is None:
                call.interrupt(Cut.SERVER_STOPPING)
        if grace_s and self.calls:
            try:
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("cutting %d calls that did not end within %g s", len(self.calls), grace_s)
        for call in list(self.calls.values()):
            call.interrupt(Cut.SERVER_STOPPING)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for timer in self._drains.values():
            timer.cancel()
        await self.errands.stop()
        await self.prompt_blocks.stop()
        if self.warmth is not None:
            await self.warmth.stop()
        watching = [poller.stop() for poller in self.backends.values()]
        watching += [events.stop() for events in self.kv_events.values()]
        await asyncio.gather(*watching, *self._retired)
        await self.http.close()

    # --- events ----------------------------------------------------------------------------------------

    def post(self, event: Event) -> list[Decision]:
        """Tell the core what happened, perform what it decides, and return that.

        A fault in the core is logged with the event and costs only this event.
        """
        try:
            decisions = self.scheduler.handle(event)
        except Exception:
            log.exception("the scheduler failed on %r", event)
            return []
        for decision in decisions:
            self._perform(decision, event.at)
            if self.warmth is not None:
                self.warmth.decided(decision)
        self._set_alarm()
        for observer in tuple(self._observers):
            try:
                observer(event, decisions)
            except Exception:
                log.exception("an observer failed on %r", event)
        return decisions

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have ``observer`` called after every event; returns what ends that. It must not block or post."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer) if observer in self._observers else None

    def _perform(self, decision: Decision, at: float) -> None:
        match decision:
            case Dispatch() | Refuse():
                if (call := self.calls.get(decision.call_id)) is not None:
                    call.decide(decision, at)
            case Cancel():
                if (call := self.calls.get(decision.call_id)) is not None:
                    call.interrupt(decision)
            case Preferred() if decision.preferred_id != decision.backend_id:
                log.info(
                    "shadow: program %s went to %s (%d tokens cached there); the router prefers %s (%d)",
                    decision.program_id,
                    decision.backend_id,
                    decision.cached_tokens,
                    decision.preferred_id,
                    decision.preferred_tokens,
                )
            case TokenizersDiffer(backend_ids=(one, other), path=path):
                log.warning(
                    "backends %s and %s count different tokens in the same prompt (%s): their tokenizers or "
                    "chat templates differ, so what one has cached says nothing about the other",
                    one,
                    other,
                    path,
                )
            case Errand():
                self.errands.give(decision)
            case _:
                pass  # told, not asked: observers see it

    def _set_alarm(self) -> None:
        """Wake no later than the core's next deadline; waking early is harmless and saves re-arming."""
        deadline = self.scheduler.next_deadline()
        if self.stopping or deadline is None or deadline >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        delay = max(deadline - self.now(), _SHORTEST_SLEEP)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, float("inf")
        self.post(Tick(at=self.now()))
        self._set_alarm()

    # --- calls -----------------------------------------------------------------------------------------

    def arrive(self, arrived: CallArrived) -> Call:
        """A call has come in. Serve it inside ``call.interruptible()`` and `Call.finish` it in the end."""
        call = self.calls[arrived.call_id] = Call(arrived, self._report)
        self._idle.clear()
        if self.stopping:
            call.interrupt(Cut.SERVER_STOPPING)
            return call
        self.post(arrived)
        if self.scheduler.call(call.id) is None and not call.over:
            call.interrupt(Cut.CORE_FAILED)
        return call

    def connect_failed(self, call: Call, backend_id: str) -> None:
        """``backend_id`` refused the connection before anything was sent; the core decides anew."""
        call.dispatch = None
        self.post(CallConnectFailed(at=self.now(), call_id=call.id, backend_id=backend_id))
        if (poller := self.backends.get(backend_id)) is not None:
            poller.look_now()

    def _report(self, call: Call, finished: CallFinished | None) -> None:
        if self.calls.pop(call.id, None) is None:
            return
        if not self.calls:
            self._idle.set()
        if finished is not None:
            self.post(finished)

    # --- backends --------------------------------------------------------------------------------------

    def add_backend(self, spec: BackendSpec) -> Poller:
        """Serve with this backend too, from now on. A known one is returned as it is."""
        if (known := self.backends.get(spec.id)) is not None:
            return known
        poller = self.backends[spec.id] = Poller(spec, self._reported, self.now, every_s=self._poll_s)
        self.post(
            BackendAdded(
                at=self.now(), backend_id=spec.id, capacity_tokens=spec.capacity_tokens, weight=spec.weight
            )
        )
        if spec.kv_events is not None:
            self.kv_events[spec.id] = KvEvents(spec, self.post, self.now)
        if hasattr(self, "http"):
            poller.start(self.http)
        return poller

    def drain_backend(self, backend_id: str, timeout_s: float | None = None) -> None:
        """No new programs there; running calls finish, or are cut after ``timeout_s``. Raises KeyError."""
        if backend_id not in self.backends:
            raise KeyError(backend_id)
        self.post(BackendDrained(at=self.now(), backend_id=backend_id))
        if (timer := self._drains.pop(backend_id, None)) is not None:
            timer.cancel()
        if timeout_s is not None:
            self._drains[backend_id] = asyncio.get_running_loop().call_later(
                timeout_s, self.cut_calls, backend_id, Cut.DRAIN_TIMEOUT
            )

    def remove_backend(self, backend_id: str) -> None:
        """Forget this backend and cut its calls. Raises KeyError."""
        poller = self.backends.pop(backend_id)
        if (timer := self._drains.pop(backend_id, None)) is not None:
            timer.cancel()
        self._retire(poller.stop())
        if (events := self.kv_events.pop(backend_id, None)) is not None:
            self._retire(events.stop())
        self.post(BackendRemoved(at=self.now(), backend_id=backend_id))
        self.cut_calls(backend_id, Cut.BACKEND_REMOVED)

    def _retire(self, stopping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(stopping)
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def _reported(self, report: BackendReported) -> None:
        known = self.scheduler.backends.get(report.backend_id)
        returned = report.healthy and known is not None and not known.healthy
        self.post(report)
        if returned and (events := self.kv_events.get(report.backend_id)) is not None:
            events.start()
        poller = self.backends.get(report.backend_id)
        if poller is not None and poller.failing_since is not None:
            # A machine that hangs resets no connection: nothing else would ever end these calls.
            silent_since = report.at - _STALLED_AFTER_S
            if poller.failing_since <= silent_since:
                self.cut_calls(report.backend_id, Cut.BACKEND_STALLED, silent_since=silent_since)

    def cut_calls(self, backend_id: str, why: Cut, *, silent_since: float | None = None) -> None:
        """Cut the calls that run on this backend; only those silent since that time, if one is given."""
        for call in list(self.calls.values()):
            if call.dispatch is None or call.dispatch.backend_id != backend_id:
                continue
            if silent_since is None or call.touched <= silent_since:
                call.interrupt(why)

    @property
    def healthy_backends(self) -> Mapping[str, Poller]:
        return {key: poller for key, poller in self.backends.items() if poller.healthy}
