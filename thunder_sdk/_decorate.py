"""Runs every call of a function in a block of its own, whatever kind of function it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from thunder_sdk._context import Suspended
from thunder_sdk._exceptions import ThunderConfigError

F = TypeVar("F", bound=Callable[..., Any])


class Block(Protocol):
    """What is a context manager both ways."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def decorate(function: F, new_block: Callable[[], Block]) -> F:
    """`function`, each call inside a fresh block; its name, signature and kind are kept.

    A generator is in the block only while its body runs; whoever consumes it never is.
    """
    if not callable(function) or inspect.isclass(function):
        raise ThunderConfigError(f"only functions can be decorated, not {function!r}")
    if inspect.isasyncgenfunction(function):
        return cast("F", functools.wraps(function)(_async_steps(function, new_block)))
    if inspect.isgeneratorfunction(function):
        return cast("F", functools.wraps(function)(_steps(function, new_block)))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def in_async_block(*args: Any, **kwargs: Any) -> Any:
            async with new_block():
                return await function(*args, **kwargs)

        return cast("F", in_async_block)

    @functools.wraps(function)
    def in_block(*args: Any, **kwargs: Any) -> Any:
        with new_block():
            return function(*args, **kwargs)

    return cast("F", in_block)


def _steps(
    function: Callable[..., Generator[Any, Any, Any]], new_block: Callable[[], Block]
) -> Callable[..., Generator[Any, Any, Any]]:
    def in_steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = Suspended()
        with body:
            block = new_block()
            block.__enter__()
        try:
            steps = function(*args, **kwargs)
            result = yield from _Resuming(steps, body)
        except BaseException as error:
            with body:
                block.__exit__(type(error), error, error.__traceback__)
            raise
        with body:
            block.__exit__(None, None, None)
        return result

    return in_steps


class _Resuming(Generator[Any, Any, Any]):
    """A generator each of whose steps runs in `body`."""

    def __init__(self, steps: Generator[Any, Any, Any], body: Suspended) -> None:
        self._steps = steps
        self._body = body

    def send(self, value: Any) -> Any:
        with self._body:
            return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        with self._body:
            return self._steps.throw(*error)

    def close(self) -> None:
        with self._body:
            self._steps.close()


def _async_steps(
    function: Callable[..., AsyncGenerator[Any, Any]], new_block: Callable[[], Block]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    async def in_async_steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = Suspended()
        with body:
            block = new_block()
            await block.__aenter__()
        try:
            steps = function(*args, **kwargs)
            step = steps.__anext__()
            while True:
                try:
                    with body:
                        value = await step
                except StopAsyncIteration:
                    break
                try:
                    sent = yield value
                except GeneratorExit:
                    with body:
                        await steps.aclose()
                    raise
                except BaseException as error:
                    step = steps.athrow(error)
                else:
                    step = steps.asend(sent)
        except BaseException as error:
            with body:
                await block.__aexit__(type(error), error, error.__traceback__)
            raise
        with body:
            await block.__aexit__(None, None, None)

    return in_async_steps
