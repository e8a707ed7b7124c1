"""One live call: where the core's decisions about it wait for the handler that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final

from thunder_server.core.decisions import Cancel, Dispatch, Refuse
from thunder_server.core.events import CallArrived, CallEnd, CallFinished
from thunder_server.usage import NO_USAGE, Usage


class Cut(StrEnum):
    """Why the runtime itself ends a call, without the core having decided so; the value says it to users."""

    BACKEND_REMOVED = "The backend that ran this call was removed."
    BACKEND_STALLED = "The backend that ran this call stopped answering."
    DRAIN_TIMEOUT = "The backend that ran this call was drained and the time for its calls is over."
    SERVER_STOPPING = "The server is shutting down."
    CORE_FAILED = "The scheduler failed on this call; the server's log says how."


class CallInterrupted(Exception):
    """The call is to end now, whatever it was doing. ``by`` says who wants that and why."""

    def __init__(self, by: Cancel | Cut) -> None:
        super().__init__(by)
        self.by: Final = by


class Call:
    """A call from its arrival to its one end.

    The runtime puts decisions in (`decide`, `interrupt`), the handler takes them out (`decided`) and works
    inside `interruptible`. `finish` reports the end to the core: the first end counts, later ones are
    harmless, so that a ``finally`` may always call it.
    """

    __slots__ = (
        "_decision",
        "_interruption",
        "_report",
        "_scope",
        "_waiter",
        "arrived",
        "dispatch",
        "over",
        "touched",
    )

    def __init__(self, arrived: CallArrived, report: Callable[[Call, CallFinished | None], None]) -> None:
        self.arrived: Final = arrived
        self.dispatch: Dispatch | None = None
        """Where the call runs now; ``None`` while it waits."""
        self.touched = arrived.at
        """When something last came from the engine, or the call was dispatched."""
        self.over = False
        self._report = report
        self._decision: Dispatch | Refuse | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._interruption: Cancel | Cut | None = None
        self._scope: asyncio.Timeout | None = None

    @property
    def id(self) -> str:
        return self.arrived.call_id

    @property
    def program_id(self) -> str:
        """The id of its program; the anonymous one for an untagged call."""
        return self.arrived.program_id or self.arrived.anonymous_id

    # --- the runtime's side ----------------------------------------------------------------------------

    def decide(self, decision: Dispatch | Refuse, at: float) -> None:
        if isinstance(decision, Dispatch):
            self.dispatch = decision
            self.touched = at
        else:
            self.dispatch = None
            self.over = True
        self._decision = decision
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def interrupt(self, by: Cancel | Cut) -> None:
        """End the call wherever it is. The first interruption counts."""
        if self._interruption is not None:
            return
        self._interruption = by
        if isinstance(by, Cancel):
            self.over = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    # --- the handler's side ----------------------------------------------------------------------------

    async def decided(self, timeout: float | None = None) -> Dispatch | Refuse | None:  # noqa: ASYNC109
        """The next decision about this call, each given once; ``None`` if none came within ``timeout``."""
        if self._decision is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait((self._waiter,), timeout=timeout)
            finally:
                self._waiter = None
        decision, self._decision = self._decision, None
        return decision

    @asynccontextmanager
    async def interruptible(self) -> AsyncGenerator[None]:
        """Raises `CallInterrupted` out of whatever is awaited inside once the call is interrupted.

        A cancellation from outside (the client is gone) stays one.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                try:
                    if self._interruption is not None:
                        raise CallInterrupted(self._interruption)
                    yield
                finally:
                    self._scope = None
        except TimeoutError:
            if self._interruption is None or not scope.expired():
                raise
            raise CallInterrupted(self._interruption) from None

    def finish(self, end: CallEnd, at: float, usage: Usage = NO_USAGE) -> None:
        """Report the end of the call, unless it already had one."""
        if self.over:
            self._report(self, None)
            return
        self.over = True
        self._report(
            self,
            CallFinished(
                at=at,
                call_id=self.id,
                end=end,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
            ),
        )
