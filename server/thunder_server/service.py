"""A whole server from its settings: scheduler, runtime, and every face on one port."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from thunder_server.app import Face, make_app, start_server
from thunder_server.auth import Keys
from thunder_server.calls import Cut
from thunder_server.compat import Compat
from thunder_server.control import Control
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.policies import CapSettings, PaperSettings, PhaseSettings, Policy, make_policy
from thunder_server.core.router import RouterSettings
from thunder_server.core.scheduler import Scheduler
from thunder_server.journal import Journal, JournalError, default_path
from thunder_server.observation import Observation
from thunder_server.proxy import Proxy
from thunder_server.reapers import Reapers
from thunder_server.reclaim.worker import make_worker
from thunder_server.resources import Resources
from thunder_server.runtime import Runtime
from thunder_server.settings import Settings
from thunder_server.weight_sync import WeightSync

log = logging.getLogger(__name__)

GRACE_S: Final = 30.0
"""How long running calls may go on once the server is told to stop."""


class ListenError(OSError):
    """The server cannot listen where it was told to."""


def make_scheduler(settings: Settings) -> Scheduler:
    """The core as the settings want it."""
    match, load, latency = settings.router_weights
    router = RouterSettings(
        match=match,
        load=load,
        latency=latency,
        exploration=settings.router_exploration,
        gather_s=settings.router_gather,
        shadow=settings.shadow,
    )
    config = SchedulerConfig(
        router=router,
        auto_lease_s=settings.auto_lease,
        max_wait_s=settings.max_wait,
        hibernate_after_s=settings.hibernate_after,
    )
    return Scheduler(policy=_policy(settings), config=config)


def _policy(settings: Settings) -> Policy:
    match settings.policy:
        case "cap":
            return make_policy("cap", CapSettings(programs=settings.cap or CapSettings().programs))
        case "paper":
            return make_policy(
                "paper",
                PaperSettings(
                    interval_s=settings.paper_interval,
                    decay=settings.paper_decay,
                    lambda_max=settings.paper_lambda_max,
                    lambda_min=settings.paper_lambda_min,
                ),
            )
        case "phase":
            return make_policy("phase", PhaseSettings(keep_warm=settings.keep_warm))
        case name:
            return make_policy(name)


def make_faces(runtime: Runtime, settings: Settings) -> list[Face]:
    """Everything that listens; the data plane comes last, as its paths are the widest."""
    keys = Keys(settings.api_keys)
    return [
        Observation(runtime, keys, settings.policy, open_metrics=settings.open_metrics),
        Control(runtime, keys, max_body=settings.max_body),
        Resources(runtime, keys, unknown_after_s=settings.auto_lease, max_body=settings.max_body),
        Reapers(runtime, keys, max_body=settings.max_body),
        Compat(runtime, keys, settings.policy, max_body=settings.max_body),
        WeightSync(runtime, keys, max_body=settings.max_body),
        Proxy(
            runtime,
            keys,
            max_body=settings.max_body,
            heartbeat_s=settings.queue_heartbeat,
            engine_priority=settings.engine_priority,
        ),
    ]


@asynccontextmanager
async def serving(settings: Settings, *, grace_s: float = 0.0) -> AsyncGenerator[tuple[str, Runtime]]:
    """A server at work until the block is left; gives the URL of its root and its runtime.

    On leaving, running calls get ``grace_s`` seconds to end. Raises `ListenError`, and `JournalError`.
    """
    runtime = Runtime(
        make_scheduler(settings),
        poll_s=settings.poll,
        tokenize_wait_s=settings.tokenize_wait,
        keep_warm=settings.keep_warm,
    )
    app = make_app(make_faces(runtime, settings))
    for backend in settings.backend:
        runtime.add_backend(backend)
    await runtime.start()
    runtime.errands.serve_with(
        make_worker(roots=settings.resource_root, docker_host=os.environ.get("DOCKER_HOST"))
    )
    try:
        async with start_server(app, settings.host, settings.port) as url:
            with _remembering(runtime, settings):
                try:
                    yield url, runtime
                finally:
                    # Before the sockets close: handlers still have answers to give.
                    await runtime.stop(grace_s)
    except JournalError:
        await runtime.stop()
        raise
    except OSError as refused:
        if runtime.stopping:
            raise
        await runtime.stop()
        raise ListenError(
            f"cannot listen on {settings.host}:{settings.port} ({refused.strerror or refused}); "
            "is another server there? choose with --host and --port"
        ) from refused


@contextmanager
def _remembering(runtime: Runtime, settings: Settings) -> Generator[None]:
    """Take up what an earlier server on this port left, and note what this one would leave.

    It happens once we listen, so that of two servers for one port the second one changes nothing.
    """
    path = settings.state or default_path(os.environ, settings.port)
    if path is None:
        yield
        return
    try:
        journal = Journal(path, runtime.scheduler, runtime.unix)
    except JournalError as unusable:
        if settings.state is not None:
            raise
        log.warning("%s; until then a restart may leave things of programs behind", unusable)
        yield
        return
    for event in journal.recovered(runtime.now()):
        runtime.post(event)
    forget = runtime.observe(journal.observe)
    try:
        yield
    finally:
        forget()
        journal.close()


async def serve_until_told(settings: Settings, ready: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT, then let running calls finish; a second signal cuts them.

    ``ready`` is given one line for the operator once the server listens.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    async with serving(settings, grace_s=GRACE_S) as (url, runtime):

        def stop() -> None:
            if told.is_set():
                log.warning("cutting %d running calls", len(runtime.calls))
                for call in list(runtime.calls.values()):
                    call.interrupt(Cut.SERVER_STOPPING)
            else:
                log.info(
                    "stopping: running calls have %g s to end (there are %d); another signal cuts them",
                    GRACE_S,
                    sum(call.dispatch is not None for call in runtime.calls.values()),
                )
            told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        ready(_greeting(url, settings))
        await told.wait()


def _greeting(url: str, settings: Settings) -> str:
    backends = ", ".join(backend.url for backend in settings.backend) or "none yet"
    return f"thunder serve: ready at {url} · policy {settings.policy} · backends: {backends}"
