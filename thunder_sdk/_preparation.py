"""Waiting for the environment that the server prepares for a program."""

from __future__ import annotations

import asyncio
import http.client
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from thunder_sdk import _process, wire
from thunder_sdk._config import API_KEY
from thunder_sdk._delivery import Patience
from thunder_sdk._exceptions import ThunderConfigError, ThunderConnectionError, ThunderStateError
from thunder_sdk._http import Answer, Connection

if TYPE_CHECKING:
    from thunder_sdk._program import Program

POLL: Final = 20.0  # s that one request waits at the server
_BROKEN: Final = (OSError, http.client.HTTPException)
_UNDECIDED: Final = frozenset({"waiting", "preparing", "hibernating", "hibernated", "waking"})


class Environment:
    """The sandbox of a program that was opened with ``environment=``, made by the server while it queues.

    Example::

        with thunder.program(environment=thunder.DockerEnvironment("python:3.12")) as p:
            plan = client.chat.completions.create(...)  # meanwhile it is prepared
            p.environment.wait()
            subprocess.run(["docker", "exec", p.environment.container_id, "pytest"])
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ready: tuple[int, str] | None = None

    @property
    def container_id(self) -> str | None:
        """The container's id once `wait` has returned True; None before, and once the program is reopened."""
        if self._ready is None or self._ready[0] != self._program.generation:
            return None
        return self._ready[1]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is ready; False if it is not after `timeout` seconds.

        Raises:
            ThunderStateError: it could not be prepared, and why; or the program has none, or is over.
            ThunderConnectionError: the server cannot be reached.
        """
        return self.container_id is not None or self._wait(_Asking(timeout))

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the public name
        """`wait` without blocking the event loop: a thread asks, for as long as it takes."""
        if self.container_id is not None:
            return True
        asking = _Asking(timeout)
        future: Future[bool] = Future()

        def ask() -> None:
            with suppress(InvalidStateError):  # nobody waits any more
                try:
                    future.set_result(self._wait(asking))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=ask, name="thunder-environment", daemon=True).start()
        try:
            return await asyncio.wrap_future(future)
        finally:
            asking.abort()

    def _wait(self, asking: _Asking) -> bool:
        self._require_one()
        self._program.open()
        process = _process.here()
        # It ends as soon as a server that is away has been tried; one that is slow is waited for.
        failure = process.sender.flush(min(_SLOWEST, asking.left), Patience.EAGER)
        if failure is not None:
            if asking.left <= 0:  # the server may not even have heard of the program
                return False
            raise failure
        path = f"{wire.program_path(self._program.id)}/environment"
        while True:
            body = asking.ask(process, path)
            state, reason = body.get("state"), body.get("reason")
            container_id = body.get("container_id")
            if state == "ready" and isinstance(container_id, str):
                self._ready = (self._program.generation, container_id)
                return True
            if state not in _UNDECIDED:
                raise ThunderStateError(f"program {self._program.id} has no environment: {reason or state}")
            if asking.left <= 0:
                return False

    def _require_one(self) -> None:
        program_id = self._program.id
        if not _process.here().config.control:
            raise ThunderStateError(f"nobody prepares an environment for {program_id}: the SDK is disabled")
        if not self._program.wants_environment:
            raise ThunderStateError(f"{program_id} has no environment: give it one, program(environment=…)")


_SLOWEST = 60.0  # s that a busy machine may take to tell the server of the program


class _Asking:
    """One wait: its deadline, and the connection it asks over."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._connection: Connection | None = None
        self._aborted = False

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def ask(self, process: _process.Process, path: str) -> Mapping[str, object]:
        """Where the environment stands once that is decided, or after a while."""
        wait_s = min(POLL, self.left)
        try:
            answer = self._request(process, path, wait_s)
        except _BROKEN:  # it may have been restarted meanwhile
            try:
                answer = self._request(process, path, wait_s)
            except _BROKEN as error:
                raise ThunderConnectionError(
                    f"the thunder server at {process.root} cannot be reached ({error}); "
                    "is `thunder serve` running?"
                ) from error
        if answer.status in (401, 403):
            raise ThunderConfigError(
                f"the thunder server at {process.root} answered {answer.status}: set {API_KEY} or api_key="
            )
        if answer.status == 404:
            return {"state": None, "reason": f"the server at {process.root} does not know it (any more)"}
        if answer.status != 200:
            raise ThunderConnectionError(f"the thunder server at {process.root} answered {answer.status}")
        return answer.body

    def _request(self, process: _process.Process, path: str, wait_s: float) -> Answer:
        if self._aborted:
            raise ConnectionAbortedError("nobody waits any more")
        config, root = process.config, process.root
        connection = self._connection = Connection(
            root,
            api_key=config.api_key if root == config.root else None,
            verify=config.verify,
            timeout=wait_s + config.timeout,
        )
        try:
            return connection.request("GET", f"{path}?wait_s={wait_s:.3f}")
        finally:
            connection.close()

    def abort(self) -> None:
        """Nobody waits any more: has the request that is under way fail."""
        self._aborted = True
        if self._connection is not None:
            self._connection.abort()
