"""Tool runs of frameworks that tell of their begin and their end by separate events."""

from __future__ import annotations

import contextvars
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final

import thunder_sdk as thunder

NOTHING_EXPECTED: Final[Mapping[str, float]] = MappingProxyType({})


class Actions:
    """The acting blocks of one program, each under a key of the framework's: a tool call's id, an event's.

    The two events may come in different threads or tasks, in any order, late or never, and after the program
    has ended; none of that disturbs whoever sends them.

    Args:
        program: whose they are; without it, whichever is current when one begins.
        expected: seconds that a tool usually runs, by its name.

    Example::

        actions = Actions(program)
        actions.begin("call_1", "terminal", expected=30)
        actions.end("call_1")
    """

    def __init__(
        self, program: thunder.Program | None = None, expected: Mapping[str, float] = NOTHING_EXPECTED
    ) -> None:
        self._program = program
        self._expected = expected
        self._running: dict[Hashable, tuple[contextvars.Context, AbstractContextManager[object]]] = {}

    def begin(self, key: Hashable, tool: str, expected: float | None = None) -> None:
        """`tool` begins to run, for about `expected` seconds; ignored if `key` runs already."""
        program = self._program or thunder.current_program()
        if key in self._running or program is None:
            return
        # In a context of its own: blocks that overlap must not become each other's surroundings.
        context = contextvars.copy_context()
        try:
            block = program.acting(tool or "tool", expected=self._expected.get(tool, expected))
            context.run(block.__enter__)
        except thunder.ThunderStateError:
            return  # the program has ended: nobody is left to tell
        self._running[key] = context, block

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """The run under `key` has ended, by `error` if one is given; ignored if none is under way."""
        running = self._running.pop(key, None)
        if running is not None:
            context, block = running
            context.run(block.__exit__, type(error) if error else None, error, None)

    def end_all(self, error: BaseException | None = None) -> None:
        """Ends whatever runs: nobody else will tell."""
        for key in list(self._running):
            self.end(key, error)
