"""smolagents: its agents, each run of which is a program. Import them from here instead.

::

    from thunder_integrations.smolagents import CodeAgent

    agent = CodeAgent(tools=[...], model=OpenAIModel(..., api_base="http://127.0.0.1:8300/v1"))
    agent.run("Fix the failing test.")
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import Context, copy_context
from typing import Any

import smolagents
from smolagents.local_python_executor import LocalPythonExecutor, PythonExecutor

import thunder_sdk as thunder
from thunder_integrations._clients import tag
from thunder_integrations._runs import NOTHING_EXPECTED, Run

__all__ = ["CodeAgent", "ToolCallingAgent"]


class _Programs(smolagents.MultiStepAgent):
    """What the agents have in common: every run is a program, and the model's calls name it.

    A run inside a ``thunder.program`` takes part in that one; a managed agent's is a child. The model's client
    is tagged if its base URL is the configured server's; else give it ``thunder.wrap_openai(model.client)``.
    """

    expected: Mapping[str, float] = NOTHING_EXPECTED

    def run(self, task: str, stream: bool = False, *args: Any, **options: Any) -> Any:
        run = Run(self.name or type(self).__name__, self.expected)
        if stream:
            return _steps(run, lambda: self._run(run, task, True, *args, **options))
        with run:
            return self._run(run, task, False, *args, **options)

    def _run(self, run: Run, *args: Any, **options: Any) -> Any:
        tag(getattr(self.model, "client", None), run.program)
        return super().run(*args, **options)


def _steps(run: Run, start: Any) -> Generator[Any, Any, None]:
    """A streamed run: the program is current while the agent works, never while its consumer does."""
    context = copy_context()
    context.run(run.start)
    try:
        steps = context.run(start)
        while True:
            try:
                step = context.run(next, steps)
            except StopIteration:
                break
            yield step
    except BaseException as error:
        context.run(run.finish, error)
        raise
    context.run(run.finish)


class ToolCallingAgent(_Programs, smolagents.ToolCallingAgent):
    """``smolagents.ToolCallingAgent``; every tool call, parallel ones too, is reported as acting.

    Args:
        expected: seconds that a tool usually runs, by its name.
    """

    def __init__(self, *args: Any, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any) -> None:
        super().__init__(*args, **options)
        self.expected = expected

    def execute_tool_call(self, tool_name: str, arguments: Any) -> Any:
        if tool_name == "final_answer":
            return super().execute_tool_call(tool_name, arguments)
        with thunder.acting(tool_name or "tool", expected=self.expected.get(tool_name)):
            return super().execute_tool_call(tool_name, arguments)


class CodeAgent(_Programs, smolagents.CodeAgent):
    """``smolagents.CodeAgent``; running the code is reported as acting, under ``python_interpreter``.

    A Docker executor's container is declared: it goes with the program, if it was made in it.

    Args:
        expected: seconds that a tool usually runs, by its name: ``{"python_interpreter": 5}``.
    """

    def __init__(self, *args: Any, expected: Mapping[str, float] = NOTHING_EXPECTED, **options: Any) -> None:
        super().__init__(*args, **options)
        self.expected = expected
        self.python_executor = _Acting(self.python_executor, expected.get(_PYTHON))

    def _run(self, run: Run, *args: Any, **options: Any) -> Any:
        container = getattr(self.python_executor, "container", None)
        if container is not None:
            run.program.resources.container(container.id)
        return super()._run(run, *args, **options)


_PYTHON = "python_interpreter"


class _Acting(PythonExecutor):
    """An executor that reports what `inner` does, and takes the program into the thread it runs code in."""

    def __init__(self, inner: PythonExecutor, expected: float | None) -> None:
        self._inner = inner
        self._expected = expected
        self._context = copy_context()

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not set yet: being copied or unpickled
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __call__(self, code_action: str) -> Any:
        with thunder.acting(_PYTHON, expected=self._expected):
            self._context = copy_context()
            return self._inner(code_action)

    def send_tools(self, tools: dict[str, Any]) -> None:
        if isinstance(self._inner, LocalPythonExecutor):
            tools = {name: _Carried(tool, self) for name, tool in tools.items()}
        self._inner.send_tools(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        self._inner.send_variables(variables)

    def copied(self) -> Context:
        """A context to call a tool in: that of the code which calls it."""
        return self._context.copy()


class _Carried:
    """A tool in the context of the code that calls it: the local executor runs code in a bare thread."""

    def __init__(self, tool: Any, executor: _Acting) -> None:
        self._tool = tool
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        if name == "_tool":
            raise AttributeError(name)
        return getattr(self._tool, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._executor.copied().run(self._tool, *args, **kwargs)
