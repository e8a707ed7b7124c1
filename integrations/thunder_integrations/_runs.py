"""Runs of agents as a framework knows them, and the program that each of them is.

One rule for all frameworks. A run takes part in the program that is current where it starts. Where none is, it is
a program of its own. Where the current program is that of another run, which thus runs it as a tool, it is a
child: it has a context of its own, which the engine keeps apart from its parent's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextvars import ContextVar, copy_context
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import thunder_sdk as thunder

NAME_LENGTH: Final = 200  # of a program's label
NOTHING_EXPECTED: Final[Mapping[str, float]] = MappingProxyType({})

_innermost: ContextVar[Run | None] = ContextVar("thunder_run", default=None)


class Run:
    """One run: a context manager around it, sync or async, or `start` and `finish` where hooks tell of it.

    It may finish in another task or thread than it started in.
    """

    def __init__(self, name: str | None, expected: Mapping[str, float] = NOTHING_EXPECTED) -> None:
        self.name = name
        self.tools = ToolCalls(expected)
        self.error: BaseException | None = None
        self.over = False
        self._own: thunder.Program | None = None
        self._outer: Run | None = None

    @property
    def program(self) -> thunder.Program:
        """What it takes part in; known once it has started."""
        return self._program

    def start(self) -> Self:
        """Finds its program or opens one, and makes it current here."""
        own = self._place()
        if own is not None:
            own.__enter__()
        return self

    def finish(self, error: BaseException | None = None) -> None:
        """Ends what it began, and its program if that is its own, with the status that `error` means."""
        error = error or self.error
        self._leave(error)
        if self._own is not None:
            self._own.__exit__(None if error is None else type(error), error, None)

    def failed(self, error: BaseException) -> None:
        """Notes an error that will not leave the run as an exception: the framework turns it into a text."""
        self.error = error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)

    async def __aenter__(self) -> Self:
        own = self._place()
        if own is not None:
            await own.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        error = error or self.error
        self._leave(error)
        if self._own is not None:
            await self._own.__aexit__(None if error is None else type(error), error, None)

    def _place(self) -> thunder.Program | None:
        """Decides which program it is; that program, if it is to be opened."""
        current, outer = thunder.current_program(), innermost()
        if current is None or (outer is not None and outer.program is current):
            self._own = thunder.program(self.name and self.name[:NAME_LENGTH])
        self._program = self._own or current or thunder.program()
        self._outer = outer
        _innermost.set(self)
        return self._own

    def _leave(self, error: BaseException | None) -> None:
        self.over = True
        self.tools.end_all(error)
        if _innermost.get() is self:
            _innermost.set(self._outer)


def innermost() -> Run | None:
    """The run that this code is part of, None outside of all."""
    run = _innermost.get()
    while run is not None and run.over:
        run = run._outer
    return run


class ToolCalls:
    """The tool calls under way, by whatever identifies one of them to the framework.

    For hooks that tell of a beginning in one place and of the end in another, late, twice, or never.
    """

    def __init__(self, expected: Mapping[str, float] = NOTHING_EXPECTED) -> None:
        self._expected = expected
        self._running: dict[Hashable, Any] = {}

    def begin(self, key: Hashable, tool: str, *, expected: float | None = None) -> None:
        """`tool` begins, for the current program; nothing if `key` runs already or there is no program."""
        if key in self._running or thunder.current_program() is None:
            return
        acting = thunder.acting(tool or "tool", expected=self._expected.get(tool, expected))
        # In a copy of the context: a hook must leave no span behind in its caller's.
        copy_context().run(acting.__enter__)
        self._running[key] = acting

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """It has ended, with `error`; nothing if it does not run."""
        acting = self._running.pop(key, None)
        if acting is not None:
            acting.__exit__(None if error is None else type(error), error, None)

    def end_all(self, error: BaseException | None = None) -> None:
        """Whatever still runs has ended: nobody will tell."""
        for key in list(self._running):
            self.end(key, error)
