"""Removes what programs leave behind while no server can: in the background, within bounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from thunder_sdk._holdings import Holdings
from thunder_sdk._sender import logger, tell
from thunder_sdk.reclaim.tasks import Site, reclaim
from thunder_sdk.wire import Claim, Task, WorkEnd

AT_ONCE: Final = 4  # programs
ATTEMPTS: Final = 3
PAUSE: Final = 0.5  # s before the second attempt, doubled with every further one


class Reclaimer:
    """Works off what programs have left, in at most `AT_ONCE` threads that end when there is nothing to do.

    `put` may be called from anywhere, signal handlers included: it holds no lock. `pause` is for tests.
    """

    def __init__(self, *, pause: float = PAUSE) -> None:
        self._pause = pause
        self._waiting: SimpleQueue[_Job] = SimpleQueue()
        self._unfinished: dict[_Job, None] = {}
        self._free = [True] * AT_ONCE

    def put(self, holdings: Holdings, claim: Claim, site: Callable[[], Site]) -> None:
        """Removes at `site`, which a thread looks up, what `holdings` has, and says there what has gone."""
        if holdings:
            job = _Job(holdings, claim, site)
            self._unfinished[job] = None
            self._waiting.put(job)
            self._start()

    def wait(self, timeout: float) -> bool:
        """Whether all is worked off within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if len(self._free) == AT_ONCE:  # no thread is at it: an interpreter on its way out starts none
            while time.monotonic() < deadline and self._work_off_one(deadline):
                pass
        jobs = [job.done for job in list(self._unfinished)]
        return not wait(jobs, max(0.0, deadline - time.monotonic())).not_done

    def _start(self) -> None:
        """One more thread, if there is something to do and not all are at it."""
        if self._waiting.empty():
            return
        with suppress(IndexError):
            self._free.pop()
            try:
                Thread(target=self._run, name="thunder-reclaim", daemon=True).start()
            except RuntimeError:
                self._free.append(True)

    def _run(self) -> None:
        while self._work_off_one(None):
            pass
        self._free.append(True)
        self._start()  # something may have come in between, and found no thread free

    def _work_off_one(self, deadline: float | None) -> bool:
        try:
            job = self._waiting.get_nowait()
        except Empty:
            return False
        try:
            site = job.site()
            for task in job.holdings.tasks(site, job.claim):
                self._reclaim(job.holdings, task, site, deadline)
        except Exception:
            logger.exception("thunder: reclaiming failed; please report this as a bug")
        finally:
            del self._unfinished[job]
            job.done.set_result(None)
        return True

    def _reclaim(self, holdings: Holdings, task: Task, site: Site, deadline: float | None) -> None:
        attempts_left = ATTEMPTS if deadline is None else 1
        pause = self._pause
        while True:
            if deadline is not None:
                task["timeout_s"] = max(0.1, deadline - time.monotonic())
            result = reclaim(task, site, task["now"])
            if result["end"] in (WorkEnd.DONE, WorkEnd.ABSENT):
                holdings.gone.append((task["kind"], task["ref"], task["host"]))
                return
            attempts_left -= 1
            if not attempts_left or not result.get("retryable"):
                break
            time.sleep(pause)
            pause *= 2
        tell(
            logging.WARNING,
            "thunder: %s %s of program %s is left here: %s", task["kind"], task["ref"], task["program_id"],
            result.get("error"),
        )  # fmt: skip


class _Job:
    """What one program has left."""

    def __init__(self, holdings: Holdings, claim: Claim, site: Callable[[], Site]) -> None:
        self.holdings = holdings
        self.claim = claim
        self.site = site
        self.done: Future[None] = Future()
