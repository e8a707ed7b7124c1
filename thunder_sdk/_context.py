"""Which programs are current here: a persistent stack in a ContextVar, which tasks inherit and none disturbs.

There are no tokens to give back: a block may end in another task, thread or generator step than it began in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry.trace import Span

from thunder_sdk._config import PROGRAM_CONTEXT
from thunder_sdk._exceptions import ThunderConfigError
from thunder_sdk._sender import logger
from thunder_sdk._tracing import CurrentSpan

if TYPE_CHECKING:
    from thunder_sdk._program import Program


class Frame:
    """One program made current, on top of what was current before. Copies of a frame share its `key`."""

    __slots__ = ("below", "key", "program", "span")

    def __init__(self, program: Program, below: Frame | None, span: CurrentSpan | None, key: object) -> None:
        self.program = program
        self.below = below
        self.span = span
        self.key = key


_top: ContextVar[Frame | None] = ContextVar("thunder_program", default=None)


def innermost_open() -> Program | None:
    """The program made current last that has not been closed."""
    frame = _top.get()
    while frame is not None and frame.program.closed:
        frame = frame.below
    return None if frame is None else frame.program


def push(program: Program, span: Span | None) -> Frame:
    """Makes `program`, and `span`, current in this context."""
    frame = Frame(program, _top.get(), None if span is None else CurrentSpan(span), object())
    _top.set(frame)
    return frame


def pop(frame: Frame) -> None:
    """Undoes `push` in this context. In another one nothing needs to be done: a closed program is skipped."""
    if frame.span is not None:
        frame.span.undo()
    above = []
    walker = _top.get()
    while walker is not None and walker.key is not frame.key:
        above.append(walker)
        walker = walker.below
    if walker is None:
        return
    below = walker.below
    for kept in reversed(above):
        below = Frame(kept.program, below, kept.span, kept.key)
    _top.set(below)


class Activation:
    """A block in which a program is current. Leaving it ends nothing."""

    __slots__ = ("_frames", "_program")

    def __init__(self, program: Program) -> None:
        self._program = program
        self._frames: list[Frame] = []

    def __enter__(self) -> Program:
        self._program.open()
        self._frames.append(push(self._program, self._program.span))
        return self._program

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop(self._frames.pop())

    async def __aenter__(self) -> Program:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


# The program that the environment names for the whole process: unread, or one entry.
_ambient: list[Program | None] = []


def ambient(load: Callable[[str], Program]) -> Program | None:
    """What ``THUNDER_PROGRAM_CONTEXT`` held at the first use, None if nothing that `load` can read."""
    if not _ambient:
        text = os.environ.get(PROGRAM_CONTEXT)
        found = None
        if text:
            try:
                found = load(text)
            except ThunderConfigError as error:
                logger.warning("thunder: %s is ignored: %s", PROGRAM_CONTEXT, error)
        _ambient.append(found)
    return _ambient[0]


class Fresh:
    """From its making until `restore` no program is current here, and the environment is read again."""

    def __init__(self) -> None:
        self._stack, self._ambient = _top.get(), _ambient.copy()
        _top.set(None)
        _ambient.clear()

    def restore(self) -> None:
        """As it was before."""
        _top.set(self._stack)
        _ambient[:] = self._ambient


class Suspended:
    """The stack of a generator's body between its steps, out of its consumer's sight.

    Inside ``with suspended:`` the body's programs and span are current, after it the consumer's again.
    """

    __slots__ = ("_otel", "_stack")

    def __init__(self) -> None:
        self._stack = _top.get()
        self._otel = otel_context.get_current()

    def _swap(self) -> None:
        stack, otel = _top.get(), otel_context.get_current()
        _top.set(self._stack)
        otel_context.attach(self._otel)
        self._stack, self._otel = stack, otel

    def __enter__(self) -> None:
        self._swap()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._swap()
