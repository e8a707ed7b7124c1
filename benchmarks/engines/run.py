"""One target, one seed: its row of figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.engines.driver import Crew
from benchmarks.engines.replicas import Engines
from benchmarks.engines.targets import Target, Telling, open_face
from thunder_sdk import wire
from thunder_server.backends.prometheus import parse
from thunder_server.demo.engines import measure_sizes, read_cache_counts
from thunder_server.demo.fleet import Fleet
from thunder_server.demo.measures import measure
from thunder_server.demo.records import Called, Failed
from thunder_server.demo.run import Real, Run, Task
from thunder_server.simulation.results import quantiles
from thunder_server.simulation.workload import Session

WORKLOAD = "fixed-work"
_FORECAST = {
    "calls": "thunder_prefix_predictions_total",
    "exact": "thunder_prefix_exact_predictions_total",
    "predicted": "thunder_prefix_predicted_tokens_total",
    "cached": "thunder_prefix_cached_tokens_total",
    "mispredicted": "thunder_prefix_mispredicted_tokens_total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A ``row`` as all benchmarks have it, and what else is to be known of the run."""

    row: dict[str, Any]
    details: dict[str, Any]


async def perform(
    target: Target, sessions: Sequence[Session], seed: int, at_a_time: int, engines: Engines, folder: Path
) -> Result:
    """Do the work at a target. What cannot be started is a `DemoError`."""
    names = tuple(url.removeprefix("http://") for url in engines.urls)
    salt = f"{seed}-{time.time_ns() // 10**6:x}"
    run = Run(
        task=Task(
            workload=WORKLOAD,
            policy=target.name,
            scripts=(),
            engines=Real(urls=engines.urls, capacities=engines.capacities, block_size=engines.block_size),
            salt=salt,
        ),
        backends=names,
    )
    async with (
        Fleet(folder) as fleet,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        face = await open_face(fleet, session, target, engines, folder)
        sizes = await measure_sizes(session, engines.urls[0], engines.model)
        crew = Crew(target=target, face=face, model=engines.model, sizes=sizes, engines=names, salt=salt)
        run.records = crew.records
        before = await read_cache_counts(session, engines.urls)
        async with _listening(session, face.server, run):
            run.started = time.time()
            await fleet.while_alive(crew.work(sessions, at_a_time))
        forecast = await _forecast(session, face.server)
        after = await read_cache_counts(session, engines.urls)
    cache = after.since(before) if before is not None and after is not None else None
    if any(call.cached_tokens is None for call in run.of(Called)):
        run.cache = cache  # else hits are those of the agents' calls, without what a scheduler asks besides
    computed = None if cache is None else round(cache.queries - cache.hits)
    return _result(run, target, seed, {"computed_tokens": computed, "forecast": forecast})


def _result(run: Run, target: Target, seed: int, more: dict[str, Any]) -> Result:
    calls, failures = run.of(Called), run.of(Failed)
    signals = "explicit" if target.telling is Telling.EXPLICIT else "inferred"
    return Result(
        row=measure(run).row | {"signals": signals, "seed": seed},
        details={
            "policy": target.name,
            "seed": seed,
            "call_s": quantiles(call.answered - call.sent for call in calls),
            "calls": len(calls),
            "prompt_tokens": sum(call.prompt_tokens for call in calls),
            "failed": len(failures),
            "first_failure": failures[0].error if failures else None,
        }
        | more,
    )


async def _forecast(session: aiohttp.ClientSession, server: str | None) -> dict[str, int] | None:
    """How well a thunder server knew what is cached: of so many calls ``exact`` predicted to the token;
    tokens predicted and cached, and ``mispredicted`` in all."""
    if server is None:
        return None
    async with session.get(f"{server}/metrics") as page:
        samples = parse(await page.text(), frozenset(_FORECAST.values()))
    return {name: round(sum(s.value for s in samples.get(family, ()))) for name, family in _FORECAST.items()}


@contextlib.asynccontextmanager
async def _listening(session: aiohttp.ClientSession, server: str | None, run: Run) -> AsyncIterator[None]:
    """Collect a thunder server's transitions meanwhile."""
    if server is None:
        yield
        return
    url = f"{server}{wire.CONTROL_PREFIX}/stream"
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as stream:

        async def listen() -> None:
            async for line in stream.content:
                if line.startswith(b"data:"):
                    run.transitions.append(json.loads(line[5:]))

        listening = asyncio.create_task(listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
