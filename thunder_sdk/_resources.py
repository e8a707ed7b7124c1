"""What a program holds outside the GPU, declared so that the server can reclaim it if the program cannot."""

from __future__ import annotations

import os
import random
import re
import socket
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from thunder_sdk import _process, wire
from thunder_sdk._atomic import Once
from thunder_sdk._exceptions import ThunderConfigError, ThunderStateError
from thunder_sdk._holdings import Holdings
from thunder_sdk.reclaim import ports, processes
from thunder_sdk.wire import EventType, ResourceKind

if TYPE_CHECKING:
    from thunder_sdk._program import Program


_DOCKER: Final = frozenset(
    {ResourceKind.CONTAINER, ResourceKind.IMAGE, ResourceKind.NETWORK, ResourceKind.VOLUME}
)
_DEFAULT_ENGINES: Final = ("unix:///var/run/docker.sock", "unix:///run/docker.sock")
_PROCESS: Final = re.compile(r"[1-9]\d*(:\d+)?", re.ASCII)


class HasPid(Protocol):
    """Anything that runs as a process, like `subprocess.Popen` or `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...


class Resource:
    """Something a program declared. Leaving a ``with`` block over it releases it.

    Example::

        with p.resources.container(container.id):
            ...
    """

    __slots__ = ("_program", "_released", "host", "keep", "kind", "ref")

    def __init__(self, program: Program, kind: ResourceKind, ref: str, *, host: str, keep: bool) -> None:
        self._program = program
        self._released = Once()
        self.kind = kind.value
        self.ref = ref
        self.host = host
        self.keep = keep

    def release(self) -> None:
        """The program does not hold it any more. Harmless a second time, and after the program has ended."""
        if self._released.claim():
            payload = {"kind": self.kind, "ref": self.ref, "host": self.host}
            self._program.report(EventType.RESOURCE_RELEASED, payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Resource {self.kind} {self.ref} on {self.host}>"


class Resources:
    """Declares what `program` holds. ``keep=True`` says that it must outlive the program.

    ``host`` is where it lives: this machine by default, for Docker objects the engine in use.
    """

    __slots__ = ("_holdings", "_program")

    def __init__(self, program: Program, holdings: Holdings) -> None:
        self._program = program
        self._holdings = holdings

    def container(self, ref: str, *, keep: bool = False, host: str | None = None) -> Resource:
        """A Docker container, by id or name."""
        return self._declare(ResourceKind.CONTAINER, ref, keep, host)

    def image(self, ref: str, *, keep: bool = False, host: str | None = None) -> Resource:
        """A Docker image that the program brings; one that was there before is never removed."""
        return self._declare(ResourceKind.IMAGE, ref, keep, host)

    def network(self, ref: str, *, keep: bool = False, host: str | None = None) -> Resource:
        """A Docker network."""
        return self._declare(ResourceKind.NETWORK, ref, keep, host)

    def volume(self, ref: str, *, keep: bool = False, host: str | None = None) -> Resource:
        """A Docker volume."""
        return self._declare(ResourceKind.VOLUME, ref, keep, host)

    def directory(
        self, ref: str | os.PathLike[str], *, keep: bool = False, host: str | None = None
    ) -> Resource:
        """A directory; made absolute here and now."""
        path = os.fspath(ref) if isinstance(ref, (str, os.PathLike)) else ""
        if not path:  # which would be made the current directory
            raise ThunderConfigError(f"a directory needs its path, not {ref!r}")
        return self._declare(ResourceKind.DIRECTORY, os.path.abspath(path), keep, host)  # noqa: PTH100 - no links

    def process(self, ref: int | str | HasPid, *, keep: bool = False, host: str | None = None) -> Resource:
        """A process: its pid, or an object that has one. Named ``pid:start time``, since pids return."""
        return self._declare(ResourceKind.PROCESS, _process_ref(ref), keep, host)

    def port(self, preferred: int | None = None, *, low: int = 20_000, high: int = 32_767) -> int:
        """A TCP port of this machine that is the program's alone until it is closed, or this process ends.

        `preferred` if it is free, else one from `low` to `high`. The kernel keeps the lease, whether there is
        a server or not, and among all who lease ports this way; that nobody else listens there is tried. A
        forked child may use the port while its parent has the lease.

        Raises ThunderStateError if there is no free one, ThunderConfigError if that is no range of ports.

        Example::

            port = p.resources.port(8080)
        """
        low, high = _port("low", low), _port("high", high)
        if preferred is not None:
            _port("preferred", preferred)
        if low > high:
            raise ThunderConfigError(f"low must not be above high: {low} > {high}")
        if _process.here().config.disabled:
            return random.randint(low, high) if preferred is None else preferred  # noqa: S311 - no secret
        lease = ports.lease(preferred, low, high)
        if lease is None:
            raise ThunderStateError(
                f"no port from {low} to {high} is free: widen the range, or close programs"
            )
        self._holdings.take_port(lease)
        self._declare(ResourceKind.PORT, str(lease.port), False, None)
        return lease.port

    def _declare(self, kind: ResourceKind, ref: object, keep: object, host: object) -> Resource:
        if not isinstance(ref, str) or not _fits(ref, wire.MAX_REF, spaces=kind is ResourceKind.DIRECTORY):
            raise ThunderConfigError(f"a {kind.value} needs its name or id, not {ref!r}")
        if host is None:
            host = (_engine_in_use() if kind in _DOCKER else None) or socket.gethostname()
        if not isinstance(host, str) or not _fits(host, wire.MAX_HOST):
            raise ThunderConfigError(f"host must name a machine or a Docker engine, not {host!r}")
        if not isinstance(keep, bool):
            raise ThunderConfigError(f"keep must be a bool, not {keep!r}")
        resource = Resource(self._program, kind, ref, host=host, keep=keep)
        payload = {"kind": resource.kind, "ref": ref, "host": host, "keep": keep}
        self._program.report(EventType.RESOURCE_DECLARED, payload)
        return resource


def _engine_in_use() -> str | None:
    """The Docker engine's address, None for the one that a machine has by default."""
    address = os.environ.get("DOCKER_HOST")
    return None if address in _DEFAULT_ENGINES else address


def _fits(name: str, most: int, *, spaces: bool = False) -> bool:
    """Whether `name` may name anything: paths may hold all but NUL, other names no space either."""
    return 0 < len(name) <= most and "\0" not in name and (spaces or not any(map(str.isspace, name)))


def _process_ref(ref: int | str | HasPid) -> str:
    if isinstance(ref, str) and _PROCESS.fullmatch(ref):
        return ref
    pid = getattr(ref, "pid", ref)
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise ThunderConfigError(f"{ref!r} is no running process; start it first")
    started = processes.start_time(pid)
    return str(pid) if started is None else f"{pid}:{started}"


def _port(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not ports.LOWEST <= value <= ports.HIGHEST:
        raise ThunderConfigError(
            f"{name} must be a port from {ports.LOWEST} to {ports.HIGHEST}, not {value!r}"
        )
    return value
