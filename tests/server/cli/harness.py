"""A server in a thread of its own, for commands that speak to one from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from thunder_server.cli.app import app

T = TypeVar("T")


class Background:
    """An event loop in a thread; what is entered there lives until the block is left."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    @contextmanager
    def entered(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Generator[T]:
        async def enter() -> tuple[AbstractAsyncContextManager[T], T]:
            manager = make()
            return manager, await manager.__aenter__()

        manager, value = self.run(enter())
        try:
            yield value
        finally:
            self.run(manager.__aexit__(None, None, None))  # type: ignore[arg-type]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


def thunder(*words: str, **environ: str) -> Result:
    """One run of the command line, in this process."""
    clean = {"THUNDER_BASE_URL": None, "THUNDER_API_KEY": None, **environ}
    result = CliRunner().invoke(app, words, env=clean)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
