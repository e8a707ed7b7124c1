"""SWE-agent: every instance is a program.

With the commands of SWE-agent, options and all::

    python -m thunder_integrations.sweagent run --agent.model.name hosted_vllm/qwen ...
    python -m thunder_integrations.sweagent run-batch --thunder.group eval-1 --num_workers 8 ...

or around a run of yours::

    with thunder_integrations.sweagent.RunHook(group="eval-1") as hook:
        batch = RunBatch.from_config(config)
        batch.add_hook(hook)
        batch.main()

Calls carry the program that is current in the instance's thread; hooks tell what tools run and which
container there is. They are of SWE-agent's three kinds, but know nothing of its classes: what a later version
tells in addition they ignore.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

import thunder_sdk as thunder
from thunder_integrations._actions import Actions

_SUBMITTED: Final = "submitted"
_COMMANDS: Final = {"run": "run", "r": "run", "run-batch": "run-batch", "b": "run-batch"}


class Hook:
    """What the hooks have in common: they ignore what they do not know."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _ignore
        raise AttributeError(name)


def _ignore(*args: object, **kwargs: object) -> None:
    """The answer to what is none of a hook's business."""


class AgentHook(Hook):
    """For ``agent.add_hook``: tells which tools the agent runs.

    Args:
        tools: whose they are; by default of the program that is current when the agent starts.
    """

    def __init__(self, tools: Actions | None = None) -> None:
        self._given = self._tools = tools

    def on_run_start(self) -> None:
        """The agent begins."""
        program = thunder.current_program()
        if self._given is None:
            self._tools = None if program is None else Actions(program=program)

    def on_model_query(self, *, messages: object, agent: str) -> None:
        """The model is to think. A tool that broke off has not been told of."""
        self._rest()

    def on_action_started(self, *, step: Any) -> None:
        """A tool begins."""
        if self._tools is not None:
            self._tools.begin("action", _tool(step.action))

    def on_action_executed(self, *, step: Any) -> None:
        """It has ended."""
        self._rest()

    def on_run_done(self, *, trajectory: object, info: object) -> None:
        """The agent is done."""
        self._rest()

    def _rest(self) -> None:
        if self._tools is not None:
            self._tools.end_all()


class EnvHook(Hook):
    """For ``env.add_hook``: declares the environment's container, and a new one after a reset.

    Args:
        program: whose it is.
        closed: called when the environment has been closed, with the error that led to it, if any.
    """

    def __init__(
        self, program: thunder.Program, closed: Callable[[BaseException | None], None] | None = None
    ) -> None:
        self.running = False
        self._program = program
        self._closed = closed
        self._env: Any = None
        self._container: thunder.Resource | None = None

    def on_init(self, *, env: Any) -> None:
        """Added to `env`, which may run already."""
        self._env = env
        self._declare()

    def on_start_deployment(self) -> None:
        """It is being started, once more perhaps."""
        self.running = True

    def on_environment_startup(self) -> None:
        """It is ready."""
        self._declare()

    def _declare(self) -> None:
        name = getattr(self._env.deployment, "container_name", None)
        if name is not None and (self._container is None or self._container.ref != name):
            self._container = self._program.resources.container(name)

    def on_close(self) -> None:
        """It has been stopped, and its deployment has forgotten the container's name already."""
        self.running = False
        container, self._container = self._container, None
        if container is not None:
            container.release()
        if self._closed is not None:
            self._closed(sys.exception())


class RunHook(Hook):
    """For ``add_hook`` of RunSingle and RunBatch: every instance is a program, a child of the current one.

    Leaving it as a context manager ends those that broke off untold. A batch shows its hooks no agent, so the
    acting of its instances is told by what runs in their environments.

    Args:
        options: what `thunder_sdk.program` takes, for each of the programs.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._instances: dict[str, Instance] = {}
        self._here = threading.local()
        self._single: Any = None

    def on_init(self, *, run: Any) -> None:
        """Added to `run`."""
        from thunder_integrations.litellm import install

        install()
        if not hasattr(run, "instances"):
            self._single = run
            return
        for entry in run.instances:
            _label(entry.env.deployment, self._instance(entry.problem_statement).program)

    def on_start(self) -> None:
        """The run begins; a single instance before its container does."""
        if self._single is not None:
            for instance in self._entered(self._single.problem_statement):
                instance.watch(self._single.env)
                self._single.agent.add_hook(AgentHook(instance.tools))

    def on_instance_start(self, *, index: int, env: Any, problem_statement: Any) -> None:
        """An instance of a batch begins, in this thread, its environment running already."""
        if self._single is None:
            for instance in self._entered(problem_statement):
                instance.watch(env)
                env.deployment = ActingDeployment(env.deployment, instance.tools)

    def on_instance_completed(self, *, result: Any) -> None:
        """The instance of this thread is done."""
        instance = self._here_now()
        if instance is not None:
            instance.completed("success" if result.info.get("exit_status") == _SUBMITTED else "error")

    def _here_now(self) -> Instance | None:
        """None in a thread that the hook has not seen an instance begin in."""
        return getattr(self._here, "instance", None)

    def _instance(self, problem_statement: Any) -> Instance:
        name = str(problem_statement.id)
        if name not in self._instances or self._instances[name].over:
            self._instances[name] = Instance(thunder.program(name[:200], **self._options))
        return self._instances[name]

    def _entered(self, problem_statement: Any) -> Iterator[Instance]:
        """The instance that begins in this thread; none if the hook was added twice, and it has begun."""
        before = self._here_now()
        instance = self._instance(problem_statement)
        if before is not instance:
            if before is not None:  # it cannot go on: its thread has another one now
                before.leave("error")
            self._here.instance = instance
            instance.enter()
            yield instance

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self._instances.values():
            instance.leave(_outcome_of(error))


class Instance:
    """One problem, its program, and how far it has got."""

    def __init__(self, program: thunder.Program) -> None:
        self.program = program
        self.tools = Actions(program=program)
        self.over = False
        self._activation: AbstractContextManager[object] | None = None
        self._outcome: str | None = None
        self._environment: EnvHook | None = None

    def enter(self) -> None:
        """Begins in this thread: its calls are the program's."""
        self._activation = self.program.activate()
        self._activation.__enter__()

    def watch(self, env: Any) -> None:
        """It has this environment, which is not running yet in a single run, but is in a batch."""
        self._environment = EnvHook(self.program, self.closed)
        env.add_hook(self._environment)

    def completed(self, outcome: str) -> None:
        """The agent has a result. A batch has closed the environment by then, a single run closes it yet."""
        self._outcome = outcome
        if self._environment is None or not self._environment.running:
            self.leave(outcome)

    def closed(self, error: BaseException | None) -> None:
        """The environment has been closed: at the end, by an error, or for a new attempt."""
        if error is not None:
            self.leave(_outcome_of(error))
        elif self._outcome is not None:
            self.leave(self._outcome)

    def leave(self, outcome: str) -> None:
        """Ends the program, in the thread that it began in or any other."""
        self.over = True
        activation, self._activation = self._activation, None
        if activation is not None:
            activation.__exit__(None, None, None)
        self.tools.end_all()
        self.program.close(outcome)


class ActingDeployment:
    """A deployment of swe-rex in which commands are acting; all else is the inner one's."""

    def __init__(self, inner: Any, tools: Actions) -> None:
        self._inner = inner
        self._tools = tools

    @property
    def runtime(self) -> Any:
        """The inner one's, watched."""
        return ActingRuntime(self._inner.runtime, self._tools)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class ActingRuntime:
    """Its runtime."""

    def __init__(self, inner: Any, tools: Actions) -> None:
        self._inner = inner
        self._tools = tools

    async def run_in_session(self, action: Any) -> Any:
        """One command, one acting block."""
        command = getattr(action, "command", None)
        if command is None:  # an interrupt
            return await self._inner.run_in_session(action)
        key = object()
        self._tools.begin(key, _tool(command))
        try:
            observation = await self._inner.run_in_session(action)
        except BaseException as error:
            self._tools.end(key, error)
            raise
        self._tools.end(key)
        return observation

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def main(words: Sequence[str] | None = None) -> int:
    """SWE-agent's ``run`` and ``run-batch``, their instances as programs."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_integrations.sweagent",
        description="SWE-agent's commands, every instance a program. Whatever else is given goes to them.",
        epilog="python -m thunder_integrations.sweagent run-batch --thunder.group eval-1 --help",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=sorted(_COMMANDS), metavar="run|run-batch")
    parser.add_argument(
        "--thunder.group", dest="group", help="what the programs belong to, like an evaluation"
    )
    parser.add_argument("--thunder.priority", dest="priority", type=int, help="higher is served earlier")
    options, theirs = parser.parse_known_args(words)
    with RunHook(group=options.group, priority=options.priority) as hook:
        if _COMMANDS[options.command] == "run":
            _run_single(theirs, hook)
        else:
            _run_batch(theirs, hook)
    return 0


def _run_single(words: list[str], hook: RunHook) -> None:
    from sweagent.run import run_single as theirs

    run = theirs.RunSingle.from_config(_config(theirs, theirs.RunSingleConfig, words))
    run.add_hook(hook)
    run.run()


def _run_batch(words: list[str], hook: RunHook) -> None:
    from sweagent.run import run_batch as theirs

    run = theirs.RunBatch.from_config(_config(theirs, theirs.RunBatchConfig, words))
    run.add_hook(hook)
    run.main()


def _config(theirs: Any, config: Any, words: list[str]) -> Any:
    """As their own command line reads it, with its help."""
    from sweagent.run.common import BasicCLI, ConfigHelper

    help_text = f"{theirs.__doc__}\n\n{ConfigHelper().get_help(config)}"
    return BasicCLI(config, help_text=help_text).get_config(words)


def _label(deployment: Any, program: thunder.Program) -> None:
    """Has the container that `deployment` describes carry the label of `program`, which opens after it."""
    arguments = getattr(deployment, "docker_args", None)
    label = f"--label=thunder.program={program.id}"
    if arguments is not None and label not in arguments and program.headers():  # not while disabled
        deployment.docker_args = [*arguments, label]


def _tool(command: str) -> str:
    """A command's first word: SWE-agent's tools are commands."""
    return (command.split(maxsplit=1) or ["bash"])[0]


def _outcome_of(error: BaseException | None) -> str:
    return "error" if error is None or isinstance(error, Exception) else "dropped"


if __name__ == "__main__":
    sys.exit(main())
