"""Keeps looking at one backend and tells the core what it sees.

Every backend has a poller, and every poller a task and time-outs of its own: one that hangs delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import aiohttp

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends.openai import OpenAIEngine
from thunder_server.backends.reading import Answer, Engine, Load, Model
from thunder_server.backends.sglang import SglangEngine
from thunder_server.backends.vllm import VllmEngine
from thunder_server.core.events import BackendReported

log = logging.getLogger(__name__)

ENGINES: Final[Mapping[str, Callable[[], Engine]]] = MappingProxyType(
    {"vllm": VllmEngine, "sglang": SglangEngine, "openai": OpenAIEngine}
)

_ANSWER_S: Final = 2.0  # an engine under load still tells in this time that it lives
_DEAD_AFTER_S: Final = 4.0  # without an answer; a refused connection needs no second look
_STALE_AFTER_S: Final = 5.0  # what the engine said of its memory and then no longer confirmed
_MODELS_EVERY_S: Final = 5.0
_HIT_RATE_WINDOW: Final = 60  # looks
_LARGEST_PAGE: Final = 16 << 20
_NEVER: Final = float("-inf")


class Poller:
    """One backend, watched: ``spec`` is the operator's word, the rest what its engine last said."""

    def __init__(
        self,
        spec: BackendSpec,
        report: Callable[[BackendReported], object],
        now: Callable[[], float],
        *,
        every_s: float,
    ) -> None:
        self.spec: Final = spec
        self.healthy = False
        self.failing_since: float | None = None
        """Since when it has not answered; ``None`` while it does. The poller's clock."""
        self.looked: Final = asyncio.Event()
        """Set once the first look is over, whatever it saw."""
        self.load = Load()
        self.models: Mapping[str, Model] | None = None
        """Entries of its ``/v1/models`` by model id; ``None`` while that list is unknown."""
        self._engine: Final = ENGINES[spec.engine]()
        self._report = report
        self._now = now
        self._every_s = every_s
        self._answered_at = self._load_at = self._models_at = _NEVER
        self._refused = False
        self._prefixes: deque[tuple[float, float]] = deque(maxlen=_HIT_RATE_WINDOW)
        self._http: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # --- life ------------------------------------------------------------------------------------------

    def start(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=f"poll {self.spec.id}")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._listing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look_now(self) -> None:
        """Something went wrong there: do not wait for the next round."""
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            try:
                settled = await self._look()
            except Exception:
                log.exception("looking at backend %s failed", self.spec.id)
                settled = True
            if settled:
                try:
                    async with asyncio.timeout(self._every_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()

    # --- one look --------------------------------------------------------------------------------------

    async def _look(self) -> bool:
        """Look once and report; False if it was in vain and the next should follow at once."""
        started = self._now()
        self._refused = False
        async with asyncio.TaskGroup() as looks:
            alive = looks.create_task(self._engine.alive(self._get))
            load = looks.create_task(self._engine.load(self._get))
            if started - self._models_at >= _MODELS_EVERY_S:
                looks.create_task(self.refresh_models())
        if alive.result():
            self._take(load.result())
            self._answered_at = started
            if not self.healthy:
                log.info("backend %s answers", self.spec.id)
            self.healthy, self.failing_since = True, None
        else:
            now = self._now()
            if not self.healthy and self.failing_since is None:
                log.warning("nothing healthy at backend %s yet (%s)", self.spec.id, self.spec.url)
            self.failing_since = started if self.failing_since is None else self.failing_since
            if self.healthy and not self._refused and now - self._answered_at < _DEAD_AFTER_S:
                return False
            if self.healthy:
                log.warning("backend %s does not answer", self.spec.id)
            self.healthy, self.load = False, Load()
            self._models_at = self._load_at = _NEVER
            self._prefixes.clear()
        self._report(self.reading())
        self.looked.set()
        return True

    def reading(self) -> BackendReported:
        """The latest look, as the core is told it."""
        return BackendReported(
            at=self._now(),
            backend_id=self.spec.id,
            healthy=self.healthy,
            capacity_tokens=self.load.capacity_tokens,
            used_tokens=self.load.used_tokens,
            running=self.load.running,
            waiting=self.load.waiting,
            hit_rate=self._hit_rate(),
            models=None if self.models is None else frozenset(self.models),
        )

    def _take(self, load: Load | None) -> None:
        now = self._now()
        if load is None:
            if now - self._load_at > _STALE_AFTER_S:
                self.load = Load()
            return
        self.load, self._load_at = load, now
        if load.prefix_hits is not None and load.prefix_queries is not None:
            if self._prefixes and load.prefix_queries < self._prefixes[-1][1]:
                self._prefixes.clear()  # the engine has restarted
            self._prefixes.append((load.prefix_hits, load.prefix_queries))

    def _hit_rate(self) -> float | None:
        """Share of recent prompt tokens found in the prefix cache; of all of them while none came lately."""
        if not self._prefixes:
            return None
        (old_hits, old_queries), (hits, queries) = self._prefixes[0], self._prefixes[-1]
        if queries > old_queries:
            return min(1.0, max(0.0, (hits - old_hits) / (queries - old_queries)))
        return min(1.0, hits / queries) if queries else None

    # --- models ----------------------------------------------------------------------------------------

    async def refresh_models(self) -> None:
        """Read the model list anew; those who ask at the same time share one request."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.get_running_loop().create_task(self._list_models())
        await asyncio.shield(self._listing)

    async def _list_models(self) -> None:
        answer = await self._get("/v1/models")
        if answer is None:
            return  # nothing was said: what was known stays
        self._models_at = self._now()
        self.models = _models(answer) if answer.status == 200 else None

    # --- asking ----------------------------------------------------------------------------------------

    async def _get(self, path: str) -> Answer | None:
        assert self._http is not None, "start() comes first"
        headers = {"Accept-Encoding": "identity"}
        if self.spec.api_key is not None:
            headers["Authorization"] = f"Bearer {self.spec.api_key.get_secret_value()}"
        patience = _ANSWER_S
        if self.healthy:
            patience = min(patience, max(0.2, self._answered_at + _DEAD_AFTER_S - self._now()))
        try:
            async with self._http.get(
                self.spec.url + path,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=patience),
            ) as answer:
                body = bytearray()
                while (chunk := await answer.content.readany()) and len(body) <= _LARGEST_PAGE:
                    body += chunk
                return Answer(answer.status, bytes(body)) if len(body) <= _LARGEST_PAGE else None
        except aiohttp.ClientConnectorError as failure:
            self._refused = self._refused or isinstance(failure.os_error, ConnectionRefusedError)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            log.debug("backend %s: GET %s: %r", self.spec.id, path, failure)
        return None


def _models(answer: Answer) -> Mapping[str, Model] | None:
    """The entries of a model list by id; ``None`` if this is none."""
    try:
        listed = json.loads(answer.body)["data"]
        return {model["id"]: model for model in listed if isinstance(model["id"], str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
