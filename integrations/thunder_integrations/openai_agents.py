"""OpenAI Agents SDK: every `Runner.run` is a program, its tools are what the program does.

::

    from thunder_integrations.openai_agents import Runner, install

    install(AsyncOpenAI(base_url="http://127.0.0.1:8300/v1"))
    result = await Runner.run(agent, "Fix the failing test.")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any
from uuid import UUID

import agents
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.events import SandboxSessionEvent
from agents.sandbox.session.sinks import EventSink
from openai import AsyncOpenAI

import thunder_sdk as thunder
from thunder_integrations._actions import NOTHING_EXPECTED, Actions
from thunder_integrations._runs import Run, innermost

__all__ = ["Hooks", "Runner", "SandboxSink", "as_tool", "install"]


def install(client: AsyncOpenAI | None = None) -> AsyncOpenAI:
    """Makes `client` the one of all agents whose model is just a name, and its calls name their program.

    Without one, a new client from the usual ``OPENAI_…`` variables, which tags calls to the configured server
    only. Tracing keeps the key that it has. A model with a client of its own needs ``thunder.wrap_openai``.
    """
    if client is None:
        client = AsyncOpenAI(http_client=thunder.async_http_client())
    else:
        client = thunder.wrap_openai(client)
    agents.set_default_openai_client(client, use_for_tracing=False)
    return client


class Hooks(agents.RunHooks[Any]):
    """Reports tools as acting. `Runner` brings its own; pass one for what it cannot know.

    With ``agents.Runner``, tools count for the program that is current where it runs.

    Args:
        inner: hooks of your own, which go on as before.
        expected: seconds that a tool usually runs, by its name.
    """

    def __init__(
        self,
        inner: agents.RunHooks[Any] | None = None,
        *,
        expected: Mapping[str, float] = NOTHING_EXPECTED,
    ) -> None:
        self._inner: agents.RunHooks[Any] = inner or agents.RunHooks()
        self.expected = expected
        self._loose = Actions(expected=expected)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self._tools().begin(_call(context, tool), getattr(context, "tool_name", tool.name))
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self._tools().end(_call(context, tool))
        await self._inner.on_tool_end(context, agent, tool, result)

    def _tools(self) -> Actions:
        run = innermost()
        return self._loose if run is None else run.tools

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._inner.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        await self._inner.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._inner.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._inner.on_handoff(context, from_agent, to_agent)


def _call(context: Any, tool: Any) -> tuple[object, str]:
    """Identifies a tool call: function tools get a context each, others share the run's and take turns.

    Not by ``tool_call_id``, which some engines number from 0 in every answer.
    """
    return context, tool.name


class Runner(agents.Runner):
    """``agents.Runner``, with a program around every run; import it instead.

    A run inside a ``thunder.program`` takes part in that one. A run that a tool of another run starts is a
    child. Handoffs go on in the same program: they go on with the same conversation.
    """

    @classmethod
    async def run(cls, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        hooks = _hooks(options)
        async with Run(starting_agent.name, hooks.expected):
            return await super().run(starting_agent, input, **{**options, "hooks": hooks})

    @classmethod
    def run_sync(cls, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        hooks = _hooks(options)
        with Run(starting_agent.name, hooks.expected):
            return super().run_sync(starting_agent, input, **{**options, "hooks": hooks})

    @classmethod
    def run_streamed(cls, starting_agent: Any, input: Any, *args: Any, **options: Any) -> Any:  # noqa: A002
        signature = inspect.signature(agents.Runner.run_streamed)
        options = signature.bind(starting_agent, input, *args, **options).arguments
        hooks = options["hooks"] = _hooks(options)
        run = Run(starting_agent.name, hooks.expected)

        def started() -> Any:
            run.start()
            try:
                result = agents.Runner.run_streamed(**options)
            except BaseException as error:
                run.finish(error)
                raise
            result.run_loop_task.add_done_callback(lambda task: run.finish(_error(task)))
            return result

        # The loop's task takes the program with it; it is not the caller's, who goes on at once.
        return copy_context().run(started)


def _hooks(options: Mapping[str, Any]) -> Hooks:
    given = options.get("hooks")
    return given if isinstance(given, Hooks) else Hooks(given)


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def as_tool(agent: Any, tool_name: str | None, tool_description: str | None, **options: Any) -> Any:
    """``agent.as_tool(…)`` whose runs are child programs, with its tools reported; `options` go to it.

    Without it, such a run counts as part of the program that called it.
    """
    failure = options.pop("failure_error_function", agents.default_tool_error_function)

    def noted(context: Any, error: Exception) -> Any:
        run = innermost()
        if run is not None:
            run.failed(error)
        return failure(context, error)

    hooks = _hooks(options)
    tool = agent.as_tool(
        tool_name,
        tool_description,
        **{**options, "hooks": hooks, "failure_error_function": failure and noted},
    )
    invoke = tool.on_invoke_tool

    async def invoke_in_child(context: Any, arguments: str) -> Any:
        async with Run(agent.name, hooks.expected):
            return await invoke(context, arguments)

    tool.on_invoke_tool = invoke_in_child
    return tool


class SandboxSink(EventSink):
    """Declares what a sandbox holds, its container or its temporary directory, for the current program.

    ``DockerSandboxClient(docker, instrumentation=Instrumentation(sinks=[SandboxSink()]))``. A session
    belongs to the program in which it is created: one that `Runner` makes to its run, one of your own outside
    of every program to nobody, so that nothing ever removes it.
    """

    mode = "sync"
    on_error = "log"
    payload_policy = None

    def __init__(self) -> None:
        self._held: dict[UUID, thunder.Resource] = {}

    def bind(self, session: BaseSandboxSession) -> None:
        """Called with every session of the client when it is made."""
        program = thunder.current_program()
        if program is None:
            return
        state = session.state
        container = getattr(state, "container_id", None)
        if container:
            self._held[state.session_id] = program.resources.container(container)
        elif getattr(state, "workspace_root_owned", False):
            self._held[state.session_id] = program.resources.directory(state.manifest.root)

    async def handle(self, event: SandboxSessionEvent) -> None:
        """Once the session is shut down, its client cleans up by itself."""
        if event.op == "shutdown" and event.phase == "finish":
            held = self._held.pop(event.session_id, None)
            if held is not None:
                held.release()
