"""The part of a step in which a tool runs: reported when it begins and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry.trace import Span

from thunder_sdk import _process, _tracing, wire
from thunder_sdk._config import seconds
from thunder_sdk._decorate import F, decorate
from thunder_sdk._exceptions import ThunderConfigError, ThunderStateError
from thunder_sdk.wire import EventType

if TYPE_CHECKING:
    from thunder_sdk._program import Program


class Acting:
    """A block in which the program runs a tool: context manager, async context manager and decorator.

    ``call_id`` names the run of the block that is under way, or its last one. A decorator reports every call
    of the function, and where no program is current it does nothing.
    """

    def __init__(self, find: Callable[[], Program | None], tool: str, expected: float | None) -> None:
        if not isinstance(tool, str) or not tool:
            raise ThunderConfigError(f"tool must name the tool, like 'bash', not {tool!r}")
        self.tool = tool[: wire.MAX_TOOL]  # it may be a model's invention: too long a name stops no agent
        self.expected = None if expected is None else seconds("expected", expected)
        self.call_id = _new_call_id()
        self._find = find
        self._program: Program | None = None
        self._running = self._used = False
        self._span: Span | None = None
        self._current: _tracing.CurrentSpan | None = None

    def __enter__(self) -> Self:
        if self._running:
            raise ThunderStateError(
                f"this acting block over {self.tool!r} runs already; make one for each run"
            )
        if self._used:
            self.call_id = _new_call_id()
        program = self._find()
        if program is not None:
            program.act(self.tool, self.call_id, self.expected)
            if not _process.here().config.disabled:
                parent = _tracing.context_for(program.span)
                self._span = _tracing.start_tool(program.id, self.tool, self.call_id, parent)
                self._current = _tracing.CurrentSpan(self._span)
        self._running = self._used = True
        self._program = program
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        if self._current is not None:
            self._current.undo()
        if self._span is not None:
            _tracing.end(self._span, error, failed=isinstance(error, Exception))
        if self._program is not None:
            self._program.report(EventType.ACTING_FINISHED, {"call_id": self.call_id, "ok": error is None})
        self._program = self._span = self._current = None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorates a function of any kind: every call is a block of its own."""
        return decorate(function, lambda: Acting(self._find, self.tool, self.expected))


def _new_call_id() -> str:
    return f"call_{_process.here().sources.new_hex()}"
