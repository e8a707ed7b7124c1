"""The processes of a run: started, awaited, and ended whatever happens.

Each writes to a log of its own, whose end is quoted where it fails. Processes get a session of their own, so
that a Ctrl-C in the terminal reaches the demo alone, which then ends them in order; should the demo itself be
killed, the kernel ends them (where it is Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

READY_WITHIN_S = 30.0
_END_WITHIN_S = 5.0
_PR_SET_PDEATHSIG = 1


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(slots=True)
class Process:
    name: str
    log: Path
    handle: asyncio.subprocess.Process

    @property
    def alive(self) -> bool:
        return self.handle.returncode is None

    def failure(self) -> DemoError:
        """What to say when it has died or does not answer."""
        state = "does not answer" if self.alive else f"ended with exit code {self.handle.returncode}"
        last = self.log.read_text(errors="replace").strip().splitlines()[-8:]
        said = "\n".join(f"    {line}" for line in last) or "    (it said nothing)"
        return DemoError(f"{self.name} {state}:\n{said}")


class Fleet:
    """An async context manager that owns processes; leaving it ends them all.

    ``folder`` takes their logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[Process] = []

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded, because it is a cancellation that brings us here when the user has had enough.
        await asyncio.shield(self._end_all())

    async def thunder(self, name: str, *arguments: str) -> Process:
        """Start one of our own commands, ``thunder ARGUMENTS``."""
        code = "from thunder_server.cli import main; main()"
        return await self._start(name, sys.executable, "-c", code, *arguments, piped=False)

    async def module(self, name: str, module: str, *arguments: str) -> Process:
        """Start a module of ours, whose standard input and output are for us."""
        return await self._start(name, sys.executable, "-m", module, *arguments, piped=True)

    async def command(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> Process:
        """Start any other program, with ``env`` added to its environment."""
        return await self._start(name, *words, piped=False, env=env)

    async def _start(
        self, name: str, *words: str, piped: bool, env: Mapping[str, str] | None = None
    ) -> Process:
        log = self._folder / f"{len(self._processes)}-{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            handle = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                env=_environment() | dict(env or {}),
            )
        process = Process(name, log, handle)
        self._processes.append(process)
        return process

    def check(self) -> None:
        """Raise what there is to say about a process that has ended with an error."""
        for process in self._processes:
            if process.handle.returncode:
                raise process.failure()

    async def while_alive(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, but no longer than all processes live: one that ends with an error is an error."""
        working = asyncio.create_task(work)
        ends = [asyncio.create_task(process.handle.wait()) for process in self._processes]
        try:
            waiting: set[asyncio.Task[Any]] = {working, *ends}
            while not working.done():
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                self.check()
            await working
        finally:
            for task in (working, *ends):
                task.cancel()
            await asyncio.gather(working, *ends, return_exceptions=True)

    async def wait_ready(self, process: Process, url: str, *, within_s: float = READY_WITHIN_S) -> None:
        """Until ``url`` answers 200."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while loop.time() < deadline:
                self.check()
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.05)
        raise process.failure()

    async def _end_all(self) -> None:
        for process in reversed(self._processes):
            if process.alive:
                with contextlib.suppress(ProcessLookupError):
                    process.handle.terminate()
        await asyncio.gather(*(self._end(process) for process in self._processes))

    async def _end(self, process: Process) -> None:
        try:
            async with asyncio.timeout(_END_WITHIN_S):
                await process.handle.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.handle.kill()
            await process.handle.wait()


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are free now, all different."""
    with contextlib.ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]


def _environment() -> dict[str, str]:
    """Ours, without what would configure another server, or send calls on this machine through a proxy."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("THUNDER_")}
    return plain | {"PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def read_lines(processes: Sequence[Process], take: Callable[[bytes], None]) -> None:
    """Hand over the lines of their standard outputs as they come, until the last one ends."""

    async def read(process: Process) -> None:
        assert process.handle.stdout is not None
        async for line in process.handle.stdout:
            take(line)

    await asyncio.gather(*(read(process) for process in processes))
