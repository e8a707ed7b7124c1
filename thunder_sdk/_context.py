"""Which programs are current here: a persistent stack in a ContextVar, which tasks inherit and none disturbs.

There are no tokens to give back: a block may end in another task, thread or generator step than it began in.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry.trace import Span

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
