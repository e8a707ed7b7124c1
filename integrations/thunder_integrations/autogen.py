"""AutoGen: runs of an agent or a team as programs.

::

    from thunder_integrations import autogen as thunder_autogen

    client = OpenAIChatCompletionClient(..., http_client=thunder.async_http_client())
    result = await thunder_autogen.run(team, task="Fix the failing test.")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

from autogen_agentchat import messages, tools

import thunder_sdk as thunder
from thunder_integrations._actions import NOTHING_EXPECTED, Actions
from thunder_integrations._runs import Run, async_steps

__all__ = ["AgentTool", "TeamTool", "run", "run_stream", "sandbox"]

T = TypeVar("T")
_CODE: Final = "code_executor"


async def run(runner: Any, *, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any) -> Any:
    """``runner.run(…)`` of an agent or a team, as a program; `options` go to it.

    A run inside a ``thunder.program`` takes part in that one. All agents of a team share the team's program,
    handoffs and selected speakers too: they go on with the same conversation.

    Args:
        runner: an agent or a team: anything with a `name` and `run_stream`.
        expected: seconds that a tool usually runs, by its name; ``code_executor`` is that of code blocks.
    """
    message = None
    async with Run(runner.name, expected) as around:
        async for message in runner.run_stream(**options):
            _follow(around.tools, message)
    return message


async def run_stream(
    runner: Any, *, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any
) -> AsyncGenerator[Any, None]:
    """``runner.run_stream(…)``, likewise. The program is current for the agents, not for their consumer."""
    around = Run(runner.name, expected)
    async with aclosing(async_steps(around, lambda: runner.run_stream(**options))) as stream:
        async for message in stream:
            _follow(around.tools, message)
            yield message


def _follow(tool_calls: Actions, message: Any) -> None:
    """Acting, from what the stream tells: a request before its tools run, an execution when all have.

    Ids count for one agent only: some engines number them from 0 in every answer.
    """
    match message:
        case messages.ToolCallRequestEvent():
            for call in message.content:
                tool_calls.begin((message.source, call.id), call.name)
        case messages.ToolCallExecutionEvent():
            for result in message.content:
                error = ToolFailed(result.content) if result.is_error else None
                tool_calls.end((message.source, result.call_id), error)
        case messages.CodeGenerationEvent() if message.code_blocks:
            tool_calls.begin((message.source, _CODE), _CODE)
        case messages.CodeExecutionEvent():
            error = ToolFailed(message.result.output) if message.result.exit_code else None
            tool_calls.end((message.source, _CODE), error)


class ToolFailed(Exception):
    """What a tool said that AutoGen calls failed; it marks the span, nobody catches it."""


@asynccontextmanager
async def sandbox(executor: T) -> AsyncGenerator[T, None]:
    """A Docker code executor, from its start to its stop, whose container goes with the current program.

    Example::

        async with thunder.program("task"), sandbox(DockerCommandLineCodeExecutor(image)) as executor: ...
    """
    running: Any = executor
    program = thunder.current_program()
    async with running:
        held = None if program is None else program.resources.container(running.container_name)
        yield executor
    if held is not None:
        held.release()


class _Child:
    """Runs of an agent or team as a tool, each of them a child of the program that calls it."""

    name: str

    async def run(self, args: Any, cancellation_token: Any) -> Any:
        async with Run(self.name):
            return await super().run(args, cancellation_token)  # type: ignore[misc]

    async def run_stream(self, args: Any, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        inner = super().run_stream  # type: ignore[misc]
        async with aclosing(async_steps(Run(self.name), lambda: inner(args, cancellation_token))) as events:
            async for event in events:
                yield event


class AgentTool(_Child, tools.AgentTool):
    """``autogen_agentchat.tools.AgentTool`` whose runs are child programs; import it instead."""


class TeamTool(_Child, tools.TeamTool):
    """``autogen_agentchat.tools.TeamTool`` whose runs are child programs; import it instead."""
