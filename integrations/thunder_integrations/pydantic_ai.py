"""pydantic-ai: a capability that makes every run of the agent a program.

::

    from thunder_integrations.pydantic_ai import Thunder

    agent = Agent(model, capabilities=[Thunder()])
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pydantic_ai.capabilities import AbstractCapability

import thunder_sdk as thunder
from thunder_integrations._actions import NOTHING_EXPECTED
from thunder_integrations._clients import tag
from thunder_integrations._runs import Run, innermost

__all__ = ["Thunder"]

# Which run is under way, and which of its capabilities reports it.
_reporter: ContextVar[tuple[str, object]] = ContextVar("thunder_pydantic_ai", default=("", None))


class Thunder(AbstractCapability[Any]):
    """Opens a program around every run, names it in the model's calls, reports every tool call as acting.

    A run inside a ``thunder.program`` takes part in that one. A run that a tool of another run starts is a
    child, if its agent has the capability as well.

    Models of an openai client whose base URL is the configured server's are tagged by themselves, also those
    in wrappers and fallbacks; others are left alone. Give those ``thunder.wrap_openai(client)``.

    Args:
        expected: seconds that a tool usually runs, by its name. A tool may say so itself:
            ``metadata={"expected_s": 40}``.
    """

    def __init__(self, *, expected: Mapping[str, float] = NOTHING_EXPECTED) -> None:
        self._expected = expected

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        before = _reporter.get()
        if before[0] == ctx.run_id:  # one for the agent, and a second one for the run
            return await handler()
        _reporter.set((ctx.run_id, self))
        try:
            async with Run(ctx.agent.name if ctx.agent is not None else None):
                return await handler()
        finally:
            _reporter.set(before)

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        run = innermost()
        if run is not None:
            for client in _clients(request_context.model):
                tag(client, run.program)
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        if _reporter.get()[1] is not self:
            return await handler(args)
        expected = self._expected.get(call.tool_name, (tool_def.metadata or {}).get("expected_s"))
        async with thunder.acting(call.tool_name, expected=expected):
            return await handler(args)


def _clients(model: Any) -> list[Any]:
    """The clients that a model sends its calls by: its own, those that it wraps or falls back to."""
    below = [model.wrapped] if hasattr(model, "wrapped") else getattr(model, "models", ())
    return [
        *([model.client] if hasattr(model, "client") else ()),
        *(client for inner in below for client in _clients(inner)),
    ]
