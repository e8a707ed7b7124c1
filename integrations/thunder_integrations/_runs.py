"""Runs of agents as a framework knows them, and the program that each of them is.

One rule for all frameworks. A run takes part in the program that is current where it starts. Where none is,
it is a program of its own. Where the current program is that of another run, which thus runs it as a tool, it
is a child: it has a context of its own, which the engine keeps apart from its parent's. So it is where a
program is current in the whole process, as below ``thunder run``: such a process may have many runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import thunder_sdk as thunder
from thunder_integrations._actions import NOTHING_EXPECTED, Actions

NAME_LENGTH: Final = 200  # of a program's label

T = TypeVar("T")

_innermost: ContextVar[Run | None] = ContextVar("thunder_run", default=None)


class Run:
    """One run: a context manager around it, sync or async; `start` and `finish` where hooks tell of it.

    It may finish in another task or thread than it started in. Its program is decided when it is made, and
    opened when it starts, is activated, or first acts.

    Args:
        name: what to call a program of its own.
        expected: seconds that a tool usually runs, by its name.
        inside: the run it is part of, where hooks know that better than the context does.
    """

    def __init__(
        self,
        name: str | None,
        expected: Mapping[str, float] = NOTHING_EXPECTED,
        *,
        inside: Run | None = None,
    ) -> None:
        self.over = False
        self._before = _innermost.get()
        self._error: BaseException | None = None
        self._around = thunder.current_program()
        outer, current = inside or innermost(), self._around
        if current is None and inside is not None:
            current = inside.program
        nested = outer is not None and outer.program is current
        self._own = None
        if nested or current is Context().run(thunder.current_program):  # the process's own, or none
            self._own = thunder.program(name and name[:NAME_LENGTH], parent=current)
        self.program: thunder.Program = self._own or current  # type: ignore[assignment]  # one of them is
        self.tools = Actions(self.program, expected)

    def start(self) -> Self:
        """Opens its program, if that is its own, and makes it current here."""
        if self._own is not None:
            self._own.__enter__()
        _innermost.set(self)
        return self

    def finish(self, error: BaseException | None = None) -> None:
        """Ends what it began, and its program if that is its own, with the status that `error` means."""
        error = self._ending(error)
        if self._own is not None:
            self._own.__exit__(_kind(error), error, None)

    def failed(self, error: BaseException) -> None:
        """Notes an error that will not leave the run as an exception: the framework turns it into a text."""
        self._error = error

    def prevails(self) -> bool:
        """Whether code here is the run's: no, if somebody has opened a program in between."""
        return thunder.current_program() in (None, self._around, self.program)

    @contextmanager
    def activated(self) -> Generator[None]:
        """A block, or two hooks, between which code belongs to the run; it ends nothing."""
        before = _innermost.get()
        with self.program.activate():
            _innermost.set(self)
            yield
        if _innermost.get() is self:
            _innermost.set(before)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)

    async def __aenter__(self) -> Self:
        if self._own is not None:
            await self._own.__aenter__()
        _innermost.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        error = self._ending(error)
        if self._own is not None:
            await self._own.__aexit__(_kind(error), error, None)

    def _ending(self, error: BaseException | None) -> BaseException | None:
        self.over = True
        error = error or self._error
        self.tools.end_all(error)
        if _innermost.get() is self:
            _innermost.set(self._before)
        return error


def _kind(error: BaseException | None) -> type[BaseException] | None:
    return None if error is None else type(error)


def innermost() -> Run | None:
    """The run whose program is current here; None outside of all, and in a program opened in between."""
    run = _innermost.get()
    while run is not None and run.over:
        run = run._before
    return run if run is not None and run.program is thunder.current_program() else None


def steps(run: Run, begin: Callable[[], Iterator[T]]) -> Generator[T, None, None]:
    """What `begin` makes, as a run: it belongs to the run while it works, its consumer never does."""
    context = copy_context()
    context.run(run.start)
    try:
        inner = context.run(begin)
        while True:
            try:
                step = context.run(next, inner)
            except StopIteration:
                break
            yield step
    except BaseException as error:
        context.run(run.finish, error)
        raise
    context.run(run.finish)


async def async_steps(run: Run, begin: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The same for what is asynchronous: every step is a task, in the run's own context."""
    context = copy_context()
    context.run(run.start)
    inner = context.run(begin)

    async def next_step() -> T:
        return await anext(inner)

    try:
        while True:
            try:
                step = await asyncio.create_task(next_step(), context=context)
            except StopAsyncIteration:
                break
            yield step
    except BaseException as error:
        try:
            await asyncio.create_task(_close(inner), context=context)
        finally:
            context.run(run.finish, error)
        raise
    context.run(run.finish)


async def _close(inner: AsyncGenerator[Any, None]) -> None:
    await inner.aclose()
