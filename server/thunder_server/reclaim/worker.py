"""Does tasks on this machine, in threads, so many at a time, and none for longer than it may take."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, cast

from thunder_sdk.reclaim import tasks
from thunder_sdk.reclaim.endings import Absent, Failed
from thunder_sdk.reclaim.engine import Engines
from thunder_sdk.reclaim.ownership import Clock
from thunder_sdk.reclaim.tasks import ENGINE_PATIENCE, Site
from thunder_sdk.wire import Task, TaskResult, Work, WorkEnd
from thunder_server.reclaim import environments, inventory
from thunder_server.reclaim.environments import Preparation

Result = TypeVar("Result")

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Removals at a time, and likewise everything else but preparations."""
PREPARED_AT_ONCE: Final = 16
"""Preparations at a time: they wait for package servers rather than compute."""
_ELSE: Final = "else"
_MARGIN_S: Final = 2.0  # beyond its time limit, within which a thread gives up by itself


class Worker:
    """Serves the hosts of its `site`. One per process and event loop.

    Removing, preparing and looking have their own turns, so that no slow one of a kind holds up the others.
    """

    def __init__(self, site: Site) -> None:
        self._engines = Engines(site.engine)
        self.site: Final = replace(site, lend=self._engines.lend)
        at_once: dict[str, int] = {Work.RECLAIM: AT_ONCE, Work.PREPARE: PREPARED_AT_ONCE, _ELSE: AT_ONCE}
        self._turns = {kind: asyncio.Semaphore(number) for kind, number in at_once.items()}
        self._preparing: dict[str, Preparation] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the machine, and of its engine, that resources it takes care of are on."""
        return self.site.hosts

    async def run(self, task: Task) -> TaskResult:
        """Does `task` and says how it went; raises nothing."""
        if task["do"] == Work.PREPARE:
            return await self._prepare(task)
        received = time.time()
        async with self._turns[_ELSE if task["do"] != Work.RECLAIM else Work.RECLAIM]:
            return await self._within(task, _MARGIN_S, lambda: self._do(task, received))

    def abandon(self, task_id: str) -> None:
        """Ends a preparation that is under way; it then says so itself."""
        self._stop(task_id, "abandoned")

    async def close(self) -> None:
        """Ends all preparations. What else is under way goes on in its thread, unobserved."""
        for task_id in tuple(self._preparing):
            self._stop(task_id, "the worker stops")
        await asyncio.gather(*self._stopping)
        self._engines.close()

    def _stop(self, task_id: str, why: str) -> None:
        preparation = self._preparing.pop(task_id, None)
        if preparation is not None:
            stopping = asyncio.ensure_future(_in_thread(lambda: preparation.stop(why)))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)

    async def _prepare(self, task: Task) -> TaskResult:
        preparation = self._preparing[task["task"]] = Preparation(
            task, self.site.lend, min(task["timeout_s"], ENGINE_PATIENCE)
        )
        loop = asyncio.get_running_loop()
        try:
            async with self._turns[Work.PREPARE]:
                limit = task["timeout_s"]
                timer = loop.call_later(limit, self._stop, task["task"], f"not ready within {limit:g} s")
                try:
                    return await self._within(task, ENGINE_PATIENCE, preparation.run)
                finally:
                    timer.cancel()
        finally:
            self._preparing.pop(task["task"], None)

    async def _within(self, task: Task, margin: float, act: Callable[[], TaskResult | None]) -> TaskResult:
        """`act` in a thread; that should end in time by itself, but an engine may do what it wants."""
        patience = task["timeout_s"] + margin
        try:
            async with asyncio.timeout(patience):
                return await _in_thread(lambda: _attempted(task, act))
        except TimeoutError:
            return _failed(task, f"not done within {patience:g} s", retryable=True)

    def _do(self, task: Task, received: float) -> TaskResult:
        if task["do"] == Work.RECLAIM:
            return tasks.reclaim(task, self.site, received)
        return self._look(task, received)

    def _look(self, task: Task, received: float) -> TaskResult:
        done = TaskResult(task=task["task"], end=WorkEnd.DONE)
        kind, ref = task.get("kind", ""), task.get("ref", "")
        if task["do"] == Work.MEASURE and kind == "directory":
            done["bytes"] = inventory.measure_directory(ref)
            return done
        with ExitStack() as stack:
            try:
                engine = stack.enter_context(self.site.lend(min(task["timeout_s"], ENGINE_PATIENCE)))
            except Failed as failed:
                if task["do"] == Work.SURVEY:
                    raise Absent(f"no Docker engine is in use here: {failed}") from failed
                raise
            server = Clock.of_sender(task["now"], received)
            match task["do"]:
                case Work.OBSERVE:
                    return inventory.observe(engine, task, server)
                case Work.SURVEY:
                    done["objects"] = inventory.survey(engine, server)
                case Work.MEASURE:
                    done["bytes"] = inventory.measure(engine, kind, ref)
                case Work.HIBERNATE:
                    environments.hibernate(engine, ref)
                case Work.WAKE:
                    environments.wake(engine, ref)
                case unknown:
                    raise Failed(f"{unknown!r} is nothing that this version can do", retryable=False)
        return done


def make_worker(
    *, roots: Sequence[Path] = (), docker_host: str | None = None, names: Sequence[str] = ()
) -> Worker:
    """A worker for this machine; for `names` instead of its own one, if there are any.

    Directories may only be removed below `roots`, or below the temporary directory if there are none.
    """
    with suppress(ImportError):  # whoever needs it says so then
        import docker.errors  # noqa: F401 - here, and not in the first threads that need it, all at once
    return Worker(Site.here(docker_host, names=names, roots=roots))


def _attempted(task: Task, act: Callable[[], TaskResult | None]) -> TaskResult:
    try:
        return tasks.attempted(task, act)
    except Exception as error:
        log.exception("%s of %s failed in a way nobody thought of", task["do"], task.get("ref"))
        return _failed(task, f"{type(error).__name__}: {error}", retryable=False)


def _failed(task: Task, why: str, *, retryable: bool) -> TaskResult:
    return TaskResult(task=task["task"], end=WorkEnd.FAILED, error=why, retryable=retryable)


async def _in_thread(function: Callable[[], Result]) -> Result:
    """The result of `function` in a thread of its own, which keeps no process alive that wants to end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(cast("Result", result))
        else:
            future.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="thunder-reclaim", daemon=True).start()
    return await future
