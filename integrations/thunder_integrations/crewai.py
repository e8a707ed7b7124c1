"""CrewAI: every kickoff of a crew, a flow or a lone agent is a program.

::

    from thunder_integrations import crewai as thunder_crewai

    thunder_crewai.install()
    llm = LLM(model="qwen", custom_openai=True, base_url=..., interceptor=thunder_crewai.Interceptor())
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from crewai import hooks
from crewai.hooks import InterceptionPoint
from crewai.llms.hooks.base import BaseInterceptor

import thunder_sdk as thunder
from thunder_integrations._actions import Actions
from thunder_integrations._clients import reaches
from thunder_integrations._runs import Run, innermost

__all__ = ["Interceptor", "install"]

_DELEGATION: Final = frozenset({"delegate_work_to_coworker", "ask_question_to_coworker"})


def install(*, expected: Mapping[str, float] | None = None) -> None:
    """From now on every kickoff in this process is seen. Twice is harmless.

    A kickoff inside a ``thunder.program`` takes part in that one. A crew's tasks are one program, for each
    goes on from what the last one found. What it hands to a coworker is a child, and so is a crew that a flow
    or a tool kicks off.

    Args:
        expected: seconds that a tool usually runs, by its name as the model sees it: ``run_tests``.
    """
    _hooks.expected.update(expected or {})
    for point, hook in _hooks.points():
        if hook not in hooks.get_hooks(point):
            hooks.register_hook(point, hook)


class Interceptor(BaseInterceptor[Any, Any]):
    """Makes an ``LLM`` name the current program in its calls, if its base URL is the configured server's.

    CrewAI takes one interceptor per LLM; `inner` is one of your own, which goes on as before.
    """

    def __init__(self, inner: BaseInterceptor[Any, Any] | None = None) -> None:
        self._inner = inner

    def on_outbound(self, message: Any) -> Any:
        return _tagged(message if self._inner is None else self._inner.on_outbound(message))

    def on_inbound(self, message: Any) -> Any:
        return message if self._inner is None else self._inner.on_inbound(message)

    async def aon_outbound(self, message: Any) -> Any:
        return _tagged(message if self._inner is None else await self._inner.aon_outbound(message))

    async def aon_inbound(self, message: Any) -> Any:
        return message if self._inner is None else await self._inner.aon_inbound(message)


def _tagged(request: Any) -> Any:
    program = thunder.current_program()
    if program is not None and reaches(request.url, program):
        for name, value in program.headers().items():
            request.headers.setdefault(name, value)
    return request


class _Hooks:
    """What CrewAI calls, in the thread and context in which the crew, or its tool, runs."""

    def __init__(self) -> None:
        self.expected: dict[str, float] = {}
        self._runs: dict[Run, object] = {}
        self._calls: dict[int, tuple[object, Actions, Run | None]] = {}

    def points(self) -> list[tuple[Any, Any]]:
        return [
            (InterceptionPoint.EXECUTION_START, self.execution_start),
            (InterceptionPoint.EXECUTION_END, self.execution_end),
            (InterceptionPoint.PRE_TOOL_CALL, self.pre_tool_call),
            (InterceptionPoint.POST_TOOL_CALL, self.post_tool_call),
        ]

    def execution_start(self, context: Any) -> None:
        what = context.crew or context.flow
        run = Run(_name(what), self.expected).start()
        self._runs[run] = what
        task = _task()
        if task is not None:  # a cancelled kickoff tells of no end
            task.add_done_callback(lambda _: self._finish(run, asyncio.CancelledError()))

    def execution_end(self, context: Any) -> None:
        run, what = innermost(), context.crew or context.flow
        if run is None or self._runs.get(run) is not what:  # told of elsewhere than the start
            run = next((known for known, its in self._runs.items() if its is what), None)
        if run is not None:
            self._finish(run, context.error)

    def _finish(self, run: Run, error: BaseException | None) -> None:
        if self._runs.pop(run, None) is not None:
            run.finish(error)

    def pre_tool_call(self, context: Any) -> None:
        run = innermost()
        if run is None and thunder.current_program() is None:
            return
        tools = Actions(expected=self.expected) if run is None else run.tools
        # Nothing else identifies the call: both hooks get the very dict of its arguments.
        key = id(context.tool_input)
        tools.begin(key, context.tool_name)
        child = None
        if context.tool_name in _DELEGATION:
            child = Run(str(context.tool_input.get("coworker") or context.tool_name), self.expected).start()
        self._calls[key] = context.tool_input, tools, child

    def post_tool_call(self, context: Any) -> None:
        key = id(context.tool_input)
        _, tools, child = self._calls.pop(key, (None, None, None))
        if child is not None:
            child.finish()
        if tools is not None:
            tools.end(key)


def _name(what: Any) -> str:
    """A crew's, a flow's, or for an agent on its own, whose flow is CrewAI's, the agent's role."""
    agent = getattr(what, "agent", None)
    return str(getattr(agent, "role", None) or what.name or type(what).__name__)


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


_hooks: Final = _Hooks()
