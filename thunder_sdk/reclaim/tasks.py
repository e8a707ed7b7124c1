"""One task of reclaiming: whether the thing is the program's, its removal, and how that went."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from thunder_sdk.reclaim import directories, objects, ports, processes
from thunder_sdk.reclaim.endings import Absent, Ending, Failed
from thunder_sdk.reclaim.engine import LOCAL, Engine
from thunder_sdk.reclaim.ownership import Clock, Owner, owners
from thunder_sdk.wire import ResourceKind, Task, TaskResult, WorkEnd

ENGINE_PATIENCE: Final = 30.0  # s for one answer of an engine


@dataclass(frozen=True, slots=True)
class Site:
    """What a worker serves: the names of its machine, the Docker engine there, where directories may go."""

    hosts: tuple[str, ...]
    engine: str
    roots: tuple[Path, ...]
    lend: Callable[[float], AbstractContextManager[Engine]]
    """A connection to the engine, on which nothing takes longer than so many seconds."""

    @classmethod
    def here(cls, docker_host: str | None, *, names: Sequence[str] = (), roots: Sequence[Path] = ()) -> Self:
        """This machine, under its own name unless others are given, with the engine at `docker_host`.

        Without `roots` directories may go below the temporary directory.
        """
        hosts = list(names or (socket.gethostname(),))
        if docker_host:
            hosts.append(docker_host)
        engine = docker_host or LOCAL
        return cls(
            hosts=tuple(dict.fromkeys(hosts)),
            engine=engine,
            roots=tuple(roots) or (Path(tempfile.gettempdir()),),
            lend=partial(Engine, engine),
        )


def reclaim(task: Task, site: Site, received: float) -> TaskResult:
    """Removes what `task` names if it is there and the program's. Blocks for about ``timeout_s`` seconds.

    `received` is when the task came, in Unix seconds of this machine; the task says what time it was for the
    server.
    """
    clock = Clock.of_sender(task["now"], received)
    return attempted(task, lambda: _remove(task, site, owners(task.get("claims", []), clock)))


def attempted(task: Task, act: Callable[[], TaskResult | None]) -> TaskResult:
    """How `act` ended, for the server: in what it returns, in "done", or in the `Ending` that it raised."""
    try:
        result = act()
        return TaskResult(task=task["task"], end=WorkEnd.DONE) if result is None else result
    except Failed as failed:
        return TaskResult(
            task=task["task"], end=WorkEnd.FAILED, error=str(failed), retryable=failed.retryable
        )
    except Ending as other:
        end = WorkEnd.ABSENT if isinstance(other, Absent) else WorkEnd.SPARED
        return TaskResult(task=task["task"], end=end, error=str(other))


def _remove(task: Task, site: Site, claimed: tuple[Owner, ...]) -> None:
    kind, ref, timeout = task["kind"], task["ref"], task["timeout_s"]
    deadline = time.monotonic() + timeout
    match kind:
        case ResourceKind.DIRECTORY:
            directories.remove(ref, site.roots, lambda: time.monotonic() > deadline)
        case ResourceKind.PROCESS:
            last = max((owner.ended_at for owner in claimed), default=0.0)
            processes.end(ref, timeout, declared_before=last, protected=frozenset({os.getpid()}))
        case ResourceKind.PORT:
            ports.require_free(ref)
        case _:
            with site.lend(min(timeout, ENGINE_PATIENCE)) as engine:
                pin, brought = task.get("pin"), task.get("brought", False)
                objects.remove(engine, kind, ref, claimed, pin=pin, brought=brought)
