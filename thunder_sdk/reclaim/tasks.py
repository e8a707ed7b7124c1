"""One task of reclaiming: whether the thing is the program's, its removal, and how that went."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from thunder_sdk.reclaim import directories, ports, processes
from thunder_sdk.reclaim.endings import Absent, Failed, Spared
from thunder_sdk.reclaim.engine import LOCAL, Engine
from thunder_sdk.reclaim.objects import Removal
from thunder_sdk.reclaim.ownership import Clock, Owner, owners
from thunder_sdk.wire import ResourceKind, Task, TaskResult, WorkEnd

ENGINE_PATIENCE: Final = 30.0  # s for one answer of an engine


@dataclass(frozen=True, slots=True)
class Site:
    """What a worker serves: the names of its machine, the Docker engine there, where directories may go."""

    hosts: tuple[str, ...]
    engine: str
    roots: tuple[Path, ...]

    @classmethod
    def here(cls, docker_host: str | None, *, names: Sequence[str] = (), roots: Sequence[Path] = ()) -> Self:
        """This machine, under its own name unless others are given, with the engine at `docker_host`.

        Without `roots` directories may go below the temporary directory.
        """
        hosts = list(names or (socket.gethostname(),))
        if docker_host:
            hosts.append(docker_host)
        return cls(
            hosts=tuple(dict.fromkeys(hosts)),
            engine=docker_host or LOCAL,
            roots=tuple(roots) or (Path(tempfile.gettempdir()),),
        )


def reclaim(task: Task, site: Site, received: float) -> TaskResult:
    """Removes what `task` names if it is there and the program's. Blocks for about ``timeout_s`` seconds.

    `received` is when the task came, in Unix seconds of this machine; the task says what time it was for the
    server.
    """
    try:
        _remove(task, site, owners(task.get("claims", []), Clock.of_sender(task["now"], received)))
    except Absent as absent:
        return TaskResult(task=task["task"], end=WorkEnd.ABSENT, error=str(absent))
    except Spared as spared:
        return TaskResult(task=task["task"], end=WorkEnd.SPARED, error=str(spared))
    except Failed as failed:
        return TaskResult(
            task=task["task"], end=WorkEnd.FAILED, error=str(failed), retryable=failed.retryable
        )
    return TaskResult(task=task["task"], end=WorkEnd.DONE)


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
            with Engine(site.engine, min(timeout, ENGINE_PATIENCE)) as engine:
                removal = Removal(engine, ref, claimed)
                match kind:
                    case ResourceKind.CONTAINER | ResourceKind.ENVIRONMENT:
                        removal.container()
                    case ResourceKind.NETWORK:
                        removal.network()
                    case ResourceKind.VOLUME:
                        removal.volume()
                    case ResourceKind.IMAGE:
                        removal.image()
                    case _:
                        raise Spared(f"{kind!r} is no kind of resource that is known here")
