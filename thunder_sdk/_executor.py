"""A thread pool whose workers know the program."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ContextThreadPoolExecutor(ThreadPoolExecutor):
    """A ``ThreadPoolExecutor`` that runs each task in a copy of its submitter's context.

    So the current program, span and every other context variable are there. `map` does the same.

    Example::

        with thunder.ContextThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, questions))
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like the base class's."""
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)  # type: ignore[arg-type]
