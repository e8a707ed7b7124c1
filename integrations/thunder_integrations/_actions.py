"""Tool runs of frameworks that tell of their begin and their end by separate events."""

from __future__ import annotations

import contextvars
from collections.abc import Hashable
from contextlib import AbstractContextManager

import thunder_sdk as thunder


class Actions:
    """The acting blocks of one program, each under a key of the framework's: a tool call's id, an event's.

    The two events may come in different threads or tasks, in any order, late or never, and after the program
    has ended; none of that disturbs whoever sends them.

    Example::

        actions = Actions(program)
        actions.begin("call_1", "terminal", expected=30)
        actions.end("call_1")
    """

    def __init__(self, program: thunder.Program) -> None:
        self._program = program
        self._running: dict[Hashable, tuple[contextvars.Context, AbstractContextManager[object]]] = {}

    def begin(self, key: Hashable, tool: str, expected: float | None = None) -> None:
        """`tool` begins to run, for about `expected` seconds; ignored if `key` runs already."""
        if key in self._running:
            return
        # In a context of its own: blocks that overlap must not become each other's surroundings.
        context = contextvars.copy_context()
        try:
            block = self._program.acting(tool, expected=expected)
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

    def end_all(self) -> None:
        """Ends whatever runs."""
        for key in list(self._running):
            self.end(key)
