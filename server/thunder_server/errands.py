"""Errands of the core, as tasks for workers: the server's own, and reapers that ask over HTTP.

A task is handed out under a lease, which whoever works on it renews by asking for more. One that is not
renewed is handed out again, so neither a reaper's death nor a lost answer loses work; doing a task twice is
harmless. A host whose last reaper is silent for too long is reported to the core as unserved.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from thunder_sdk import wire
from thunder_server.core import decisions as d
from thunder_server.core.events import Event
from thunder_server.core.resource_events import HostServed, HostUnserved
from thunder_server.errand_words import about, outcome

log = logging.getLogger(__name__)

LEASE_S: Final = 30.0
LOST_AFTER_S: Final = 3 * LEASE_S
"""A reaper that asks for nothing for so long is gone."""
TIMEOUTS: Final = {
    wire.Work.RECLAIM: 30.0,
    wire.Work.PREPARE: 900.0,  # images may have to be pulled
    wire.Work.OBSERVE: 10.0,
    wire.Work.SURVEY: 60.0,
    wire.Work.MEASURE: 120.0,
    wire.Work.HIBERNATE: 30.0,
    wire.Work.WAKE: 30.0,
}
AT_MOST: Final = 64
"""Tasks that a reaper is given at a time."""


class Worker(Protocol):
    """Does tasks on this machine (see ``thunder_server.reclaim``)."""

    @property
    def hosts(self) -> Sequence[str]: ...

    async def run(self, task: wire.Task) -> wire.TaskResult: ...

    def abandon(self, task_id: str) -> None: ...

    async def close(self) -> None: ...


class Unserved(LookupError):
    """Nobody does work on this host."""


@dataclass(slots=True, eq=False, kw_only=True)
class Posted:
    """A task until it is answered. ``reaper`` has it until ``lease_until``; nobody has it if ``None``."""

    id: str
    do: wire.Work
    host: str
    fields: dict[str, object]
    answer: Callable[[wire.TaskResult], None]
    reaper: str | None = None
    lease_until: float = 0.0


@dataclass(slots=True, kw_only=True)
class Reaper:
    """Somebody who asks for work of these hosts. ``bell`` rings when there may be some."""

    hosts: frozenset[str]
    seen_at: float
    abandon: list[str] = field(default_factory=list)
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class Errands:
    """All work on resources that is under way. Give it errands; it posts what becomes of them."""

    def __init__(
        self, post: Callable[[Event], object], now: Callable[[], float], unix: Callable[[float], float]
    ) -> None:
        self._post = post
        self._now = now
        self._unix = unix
        self._posted: dict[str, Posted] = {}
        self._idle: dict[str, dict[str, Posted]] = {}  # by host: handed to nobody yet
        self._reapers: dict[str, Reaper] = {}
        self._worker: Worker | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def hosts(self) -> set[str]:
        """Those that somebody serves."""
        own = self._worker.hosts if self._worker else ()
        return {*own, *(host for reaper in self._reapers.values() for host in reaper.hosts)}

    @property
    def here(self) -> tuple[str, str]:
        """What this machine, and the Docker engine in use on it, are called as hosts."""
        own = tuple(self._worker.hosts if self._worker else ()) or (socket.gethostname(),)
        return own[0], own[-1]

    # --- work comes in

    def give(self, errand: d.Errand) -> None:
        """Have it done. Returns at once."""
        if isinstance(errand, d.AbandonEnvironment):
            self._abandon(errand)
            return
        do, fields = about(errand, self._unix)
        self._put(
            do,
            errand.host or "",
            fields,
            lambda result: self._post_outcome(errand, result),
            of=f"{errand.program_id}/{errand.generation}",
        )

    async def ask(self, do: wire.Work, host: str, **fields: object) -> wire.TaskResult:
        """Have something looked at on a host, for somebody who waits. Raises `Unserved`."""
        if host not in self.hosts:
            raise Unserved(host)
        future: asyncio.Future[wire.TaskResult] = asyncio.get_running_loop().create_future()

        def answer(result: wire.TaskResult) -> None:
            if not future.done():
                future.set_result(result)

        asked = {"program_id": "", "generation": 0, "attempt": 1, **fields}
        posted = self._put(do, host, asked, answer, of=f"asked {id(future)}")
        try:
            return await future
        finally:
            self._drop(posted)

    def _put(
        self,
        do: wire.Work,
        host: str,
        fields: dict[str, object],
        answer: Callable[[wire.TaskResult], None],
        *,
        of: str,
    ) -> Posted:
        task_id = _task_id(do, of, host, fields)
        posted = Posted(id=task_id, do=do, host=host, fields=fields, answer=answer)
        self._posted[task_id] = posted
        if self._worker is not None and host in self._worker.hosts:
            self._start(self._worker, posted)
        else:
            self._offer(posted)
        return posted

    def _offer(self, posted: Posted) -> None:
        posted.reaper = None
        self._idle.setdefault(posted.host, {})[posted.id] = posted
        for reaper in self._reapers.values():
            if posted.host in reaper.hosts:
                reaper.bell.set()

    def _post_outcome(self, errand: d.Errand, result: wire.TaskResult) -> None:
        event = outcome(errand, result, self._now(), self._unix)
        if event is not None:
            self._post(event)

    def _abandon(self, errand: d.AbandonEnvironment) -> None:
        fields: dict[str, object] = {"name": errand.name}
        of = f"{errand.program_id}/{errand.generation}"
        posted = self._posted.get(_task_id(wire.Work.PREPARE, of, errand.host or "", fields))
        if posted is None:
            return
        if posted.reaper is not None:
            reaper = self._reapers[posted.reaper]
            reaper.abandon.append(posted.id)
            reaper.bell.set()
        elif self._worker is not None and posted.host in self._worker.hosts:
            self._worker.abandon(posted.id)
        else:
            self._answered({"task": posted.id, "end": wire.WorkEnd.FAILED, "error": "abandoned"})

    def _drop(self, posted: Posted) -> None:
        if self._posted.get(posted.id) is posted:
            del self._posted[posted.id]
        self._idle.get(posted.host, {}).pop(posted.id, None)

    def _answered(self, result: wire.TaskResult) -> bool:
        """Whether somebody wanted to know."""
        posted = self._posted.get(result["task"])
        if posted is None:
            return False
        self._drop(posted)
        posted.answer(result)
        return True

    def _task(self, posted: Posted) -> wire.Task:
        task: dict[str, object] = {
            "task": posted.id,
            "do": posted.do.value,
            "host": posted.host,
            "now": self._unix(self._now()),
            "timeout_s": TIMEOUTS[posted.do],
        }
        return cast("wire.Task", task | posted.fields)

    # --- this machine's own worker

    def serve_with(self, worker: Worker) -> None:
        """Have this machine's work done by ``worker``, in this event loop."""
        self._worker = worker
        for host in worker.hosts:
            self._post(HostServed(at=self._now(), host=host))

    async def stop(self) -> None:
        """Do no more. What is under way is done again after the next start, as far as it is still known."""
        if self._watch is not None:
            self._watch.cancel()
        for running in list(self._running):
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._worker is not None:
            await self._worker.close()
        for reaper in self._reapers.values():
            reaper.bell.set()

    def _start(self, worker: Worker, posted: Posted) -> None:
        async def work() -> None:
            self._answered(await worker.run(self._task(posted)))

        running = asyncio.get_running_loop().create_task(work())
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    # --- reapers

    def seen(self, reaper_id: str, hosts: Iterable[str], busy: Iterable[str]) -> Reaper:
        """A reaper asks for work, and works on what it is ``busy`` with."""
        now, served = self._now(), frozenset(hosts)
        known = self._reapers.get(reaper_id)
        if known is None:
            known = self._reapers[reaper_id] = Reaper(hosts=served, seen_at=now)
            log.info("reaper %s serves %s", reaper_id[:8], ", ".join(sorted(served)))
            if self._watch is None:
                self._keep_watch()
        known.seen_at = now
        for host in served:
            self._post(HostServed(at=now, host=host))
        for task_id in busy:
            posted = self._posted.get(task_id)
            if posted is not None and posted.reaper in (None, reaper_id):
                self._hand(posted, reaper_id)
        return known

    def hand_out(self, reaper_id: str, most: int) -> list[wire.Task]:
        """Work for a reaper that was `seen`."""
        reaper = self._reapers[reaper_id]
        reaper.bell.clear()
        ready = [posted for host in sorted(reaper.hosts) for posted in self._idle.get(host, {}).values()]
        given = ready[: min(most, AT_MOST)]
        for posted in given:
            self._hand(posted, reaper_id)
        return [self._task(posted) for posted in given]

    def abandoned(self, reaper_id: str) -> list[str]:
        """Tasks that a reaper need not go on with."""
        reaper = self._reapers[reaper_id]
        abandoned, reaper.abandon = reaper.abandon, []
        return abandoned

    def results(self, results: Iterable[wire.TaskResult]) -> list[str]:
        """A reaper tells how tasks went; those that nobody asked for (any more) are returned."""
        return [result["task"] for result in results if not self._answered(result)]

    def check_leases(self) -> None:
        """Hand out again what is not worked on any longer; notice reapers that are gone."""
        now = self._now()
        for posted in list(self._posted.values()):
            if posted.reaper is not None and posted.lease_until <= now:
                log.warning("%s of %s is handed out again", posted.do, posted.fields.get("ref", posted.host))
                self._offer(posted)
        lost = [key for key, reaper in self._reapers.items() if reaper.seen_at <= now - LOST_AFTER_S]
        for reaper_id in lost:
            hosts = self._reapers.pop(reaper_id).hosts
            for host in sorted(hosts - self.hosts):
                log.warning("nobody reclaims on %s any longer: its reaper is silent", host)
                for posted in [posted for posted in self._posted.values() if posted.host == host]:
                    self._drop(posted)
                self._post(HostUnserved(at=now, host=host))

    def _keep_watch(self) -> None:
        self.check_leases()
        self._watch = asyncio.get_running_loop().call_later(LEASE_S / 6, self._keep_watch)

    def _hand(self, posted: Posted, reaper_id: str) -> None:
        self._idle.get(posted.host, {}).pop(posted.id, None)
        posted.reaper = reaper_id
        posted.lease_until = self._now() + LEASE_S


def _task_id(do: wire.Work, of: str, host: str, fields: dict[str, object]) -> str:
    """The same for the same work, whichever server asks for it."""
    what = [fields.get(key) for key in ("kind", "ref", "name")]
    return hashlib.sha256(json.dumps([do.value, of, host, *what]).encode()).hexdigest()[:32]
