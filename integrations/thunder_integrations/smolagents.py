"""smolagents: its agents, each run of which is a program. Import them from here instead.

::

    from thunder_integrations.smolagents import CodeAgent

    agent = CodeAgent(tools=[...], model=OpenAIModel(..., api_base="http://127.0.0.1:8300/v1"))
    agent.run("Fix the failing test.")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context, copy_context
from typing import Any

import smolagents
from smolagents.local_python_executor import LocalPythonExecutor, PythonExecutor

import thunder_sdk as thunder
from thunder_integrations._actions import NOTHING_EXPECTED
from thunder_integrations._clients import tag
from thunder_integrations._runs import Run, steps

__all__ = ["CodeAgent", "ToolCallingAgent"]


class _Programs(smolagents.MultiStepAgent):
    """What the agents have in common: every run is a program, and the model's calls name it.

    A run inside a ``thunder.program`` takes part in that one; a managed agent's is a child. The model's
    client is tagged if its base URL is the configured server's, else say
    ``thunder.wrap_openai(model.client)``.
    """

    def run(self, task: str, stream: bool = False, *args: Any, **options: Any) -> Any:
        run = Run(self.name or type(self).__name__)
        if stream:
            return steps(run, lambda: self._run(run, task, True, *args, **options))
        with run:
            return self._run(run, task, False, *args, **options)

    def _run(self, run: Run, *args: Any, **options: Any) -> Any:
        tag(getattr(self.model, "client", None), run.program)
        return super().run(*args, **options)


class ToolCallingAgent(_Programs, smolagents.ToolCallingAgent):
    """``smolagents.ToolCallingAgent``; every tool call, parallel ones too, is reported as acting.

    Args:
        expected: seconds that a tool usually runs, by its name.
    """

    def __init__(self, *args: Any, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any) -> None:
        super().__init__(*args, **options)
        self._expected = expected

    def execute_tool_call(self, tool_name: str, arguments: Any) -> Any:
        if tool_name == "final_answer":
            return super().execute_tool_call(tool_name, arguments)
        with thunder.acting(tool_name or "tool", expected=self._expected.get(tool_name)):
            return super().execute_tool_call(tool_name, arguments)


class CodeAgent(_Programs, smolagents.CodeAgent):
    """``smolagents.CodeAgent``; running the code is reported as acting, under ``python_interpreter``.

    A Docker executor's container is declared: it goes with the program, if it was made in it.

    Args:
        expected: seconds that a tool usually runs, by its name: ``{"python_interpreter": 5}``.
    """

    def __init__(self, *args: Any, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any) -> None:
        super().__init__(*args, **options)
        executor: PythonExecutor = self.python_executor
        self.python_executor: PythonExecutor = _Acting(executor, expected.get(_PYTHON))

    def _run(self, run: Run, *args: Any, **options: Any) -> Any:
        container = getattr(self.python_executor, "container", None)
        if container is not None:
            run.program.resources.container(container.id)
        return super()._run(run, *args, **options)


_PYTHON = "python_interpreter"


class _Acting(PythonExecutor):
    """An executor that reports what `inner` does.

    The local one runs code in a bare thread, which knows nothing of the program: there every tool brings
    along the context of the code that it was made for.
    """

    def __init__(self, inner: PythonExecutor, expected: float | None) -> None:
        self._inner = inner
        self._expected = expected
        self._tools: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not set yet: being copied or unpickled
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __call__(self, code_action: str) -> Any:
        with thunder.acting(_PYTHON, expected=self._expected):
            if isinstance(self._inner, LocalPythonExecutor):
                context = copy_context()
                self._inner.send_tools({name: _Tool(tool, context) for name, tool in self._tools.items()})
            return self._inner(code_action)

    def send_tools(self, tools: dict[str, Any]) -> None:
        self._tools = tools
        self._inner.send_tools(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        self._inner.send_variables(variables)


class _Tool:
    """A tool, or a managed agent, that runs in `context` whoever calls it."""

    def __init__(self, tool: Any, context: Context) -> None:
        self._tool = tool
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if name == "_tool":
            raise AttributeError(name)
        return getattr(self._tool, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._context.copy().run(self._tool, *args, **kwargs)
