"""What ``thunder reaper`` does: fetches work for its hosts from a server, does it, and tells how it went.

The server hands out work under leases, so nothing is kept here: a reaper that dies leaves its work to the
next one, and a server that restarts is asked again until it answers.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

import aiohttp

from thunder_sdk import wire
from thunder_server.reclaim.worker import Worker

log = logging.getLogger(__name__)

IN_HAND: Final = 64
"""Tasks held at a time. The worker does fewer at once; the rest are next."""
WAIT_S: Final = 20.0  # how long a server without work may take to say so
BUSY_WAIT_S: Final = 5.0  # likewise while there is work whose lease is to be renewed
BACKOFF_FIRST_S: Final = 0.25  # doubled with every failure
BACKOFF_MAX_S: Final = 5.0
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 15.0  # beyond what the server was allowed to wait


class Refused(Exception):
    """The server does not want this reaper, and will not later: the message says what to do."""


class Reaper:
    """Between one worker and the server whose root is ``server``. `run` ends only by being cancelled."""

    def __init__(self, worker: Worker, server: str, key: str | None) -> None:
        self.id: Final = uuid.uuid4().hex
        self._worker = worker
        self._server = server
        self._headers = {} if key is None else {wire.API_KEY: key}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._results: list[wire.TaskResult] = []
        self._told = asyncio.Event()
        self._failures = 0

    async def run(self) -> None:
        """Serve until cancelled; what is under way then gets no answer, and is given to somebody else later.

        Raises `Refused`.
        """
        # Straight to the server, whatever proxies the environment names.
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=WAIT_S + _ANSWER_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._fetch(http))
                    group.create_task(self._tell(http))
            except* Refused as refused:
                raise refused.exceptions[0] from None
            finally:
                for task in self._busy.values():
                    task.cancel()
                await self._worker.close()

    async def _fetch(self, http: aiohttp.ClientSession) -> None:
        while True:
            answer = await self._ask(
                http,
                wire.REAPER_WORK_PATH,
                {
                    "reaper": self.id,
                    "hosts": list(self._worker.hosts),
                    "busy": list(self._busy),
                    "wait_s": BUSY_WAIT_S if self._busy else WAIT_S,
                    "max": IN_HAND - len(self._busy),
                },
            )
            for task in answer.get("tasks", ()):
                if task["task"] not in self._busy:
                    self._busy[task["task"]] = asyncio.create_task(self._do(cast("wire.Task", task)))
            for task_id in answer.get("abandon", ()):
                self._worker.abandon(task_id)

    async def _do(self, task: wire.Task) -> None:
        about = " ".join(task.get(part, "") for part in ("do", "kind", "ref"))  # type: ignore[misc]
        log.info("%s, for program %s", about, task["program_id"])
        result = await self._worker.run(task)
        del self._busy[task["task"]]
        if result["end"] == wire.WorkEnd.FAILED:
            log.warning("%s, for program %s: %s", about, task["program_id"], result.get("error"))
        self._results.append(result)
        self._told.set()

    async def _tell(self, http: aiohttp.ClientSession) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            if results := self._results.copy():
                await self._ask(http, wire.REAPER_RESULTS_PATH, {"reaper": self.id, "results": results})
                del self._results[: len(results)]

    async def _ask(
        self, http: aiohttp.ClientSession, path: str, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The server's answer, however long it takes until there is one. Raises `Refused`."""
        while True:
            try:
                async with http.post(self._server + path, json=body) as response:
                    if response.status < 300:
                        answer: Mapping[str, Any] = await response.json()
                        self._answered()
                        return answer
                    why = f"it answered {response.status}: {(await response.text())[:500]}"
                    if response.status in (401, 403):
                        raise Refused(
                            f"{self._server} wants a key; give it with --api-key or THUNDER_API_KEY"
                        )
                    if 400 <= response.status < 500 and response.status not in (408, 429):
                        raise Refused(f"{self._server} is no server for this reaper: {why}")
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
            await self._failed(why)

    async def _failed(self, why: str) -> None:
        if self._failures == 0:
            log.warning("%s cannot be used (%s); it is asked again until it can", self._server, why)
        pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        await asyncio.sleep(pause)

    def _answered(self) -> None:
        if self._failures:
            log.info("%s is back", self._server)
        self._failures = 0
