"""One Docker engine, asked through the ``docker`` package, with its failures in our words."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, Final, Self

from thunder_sdk.reclaim.endings import Absent, Failed, Spared
from thunder_sdk.reclaim.ownership import Clock, unix

LOCAL: Final = "unix:///var/run/docker.sock"
_CONFLICT: Final = 409
_FAULT: Final = 500


class Engine:
    """A connection to the engine at `address`, a URL as in ``DOCKER_HOST``.

    No network operation takes longer than `timeout` seconds. Not thread-safe; use it in a ``with`` block.
    Everything may raise `Absent` or `Failed`.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self._clock: Clock | None = None

    def __enter__(self) -> Self:
        try:
            import docker  # takes a while, and few programs hold Docker objects
            import docker.utils
            from docker.constants import MINIMUM_DOCKER_API_VERSION
        except ImportError as error:
            raise Failed(
                "the package docker is missing here: pip install 'thunder-sdk[docker]'", retryable=False
            ) from error
        with self.answering("the engine"):
            self._knock()
            settings: dict[str, Any] = docker.utils.kwargs_from_env()  # certificates for TLS, that is
            settings |= {"base_url": self.address, "timeout": self.timeout}
            # A client that shall ask for the version itself keeps its sockets open if that fails.
            with closing(docker.APIClient(version=MINIMUM_DOCKER_API_VERSION, **settings)) as asking:
                version = asking.version(api_version=False)["ApiVersion"]
            self.api = docker.APIClient(version=version, **settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.close()

    def renew(self, timeout: float) -> None:
        """For another use, with another `timeout`; what the clock said may be old by then."""
        self.timeout = self.api.timeout = timeout
        self._clock = None

    def _knock(self) -> None:
        """OSError if nobody listens at the socket: the package would leave its own one open then."""
        if self.local:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(self.timeout)
                door.connect(self.address.removeprefix("unix://"))

    @contextmanager
    def answering(self, what: str) -> Iterator[None]:
        """A block that asks the engine about `what`; its errors leave as an `Ending`."""
        import docker.errors
        import requests

        try:
            yield
        except docker.errors.NotFound as error:
            raise Absent(f"{what} is gone") from error
        except docker.errors.APIError as error:
            status = error.status_code or _FAULT
            raise Failed(
                f"{what}: the engine answered {status}: {str(error.explanation or error).strip()}",
                retryable=status >= _FAULT or status == _CONFLICT,
            ) from error
        except requests.Timeout as error:
            raise Failed(
                f"{what}: no answer from the engine at {self.address} within {self.timeout:g} s",
                retryable=True,
            ) from error
        except (requests.RequestException, docker.errors.DockerException, OSError, ValueError) as error:
            # Not there, gone half-way, or what it says is no JSON.
            raise Failed(
                f"{what}: no use of the engine at {self.address}: {error}", retryable=True
            ) from error

    @property
    def local(self) -> bool:
        """Whether its files may be this machine's."""
        return self.address.startswith("unix://")

    @property
    def api_version(self) -> tuple[int, ...]:
        """Of the API that is spoken with it, like ``(1, 41)``."""
        return tuple(map(int, self.api.api_version.split(".")))

    def clock(self) -> Clock:
        """What its clock says, compared with ours."""
        if self._clock is None:
            asked = time.time()
            with self.answering("the engine's time"):
                said = unix(self.api.info()["SystemTime"])
            self._clock = Clock.of_engine(asked, said, time.time())
        return self._clock

    def users(self, **filters: str) -> list[Mapping[str, Any]]:
        """Containers, running or not, that these `filters` of the engine select."""
        with self.answering("the list of containers"):
            found: list[Mapping[str, Any]] = self.api.containers(all=True, filters=filters)
        return found


class Engines:
    """Connections to one engine, kept for whoever needs one next: making one takes some computing."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._idle: list[Engine] = []

    @contextmanager
    def lend(self, timeout: float) -> Iterator[Engine]:
        """A connection for one block, which may be in any thread. One that failed is not used again."""
        try:
            engine = self._idle.pop()
            engine.renew(timeout)
        except IndexError:
            engine = Engine(self._address, timeout).__enter__()
        try:
            yield engine
        except (Absent, Spared):
            self._idle.append(engine)
            raise
        except BaseException:
            engine.api.close()
            raise
        self._idle.append(engine)

    def close(self) -> None:
        """Closes those that nobody has."""
        while self._idle:
            self._idle.pop().api.close()
