"""mini-swe-agent: every run of an agent is a program.

By configuration, with dotted paths, alone or together::

    model:       {model_class: thunder_integrations.minisweagent.Model}
    environment: {environment_class: thunder_integrations.minisweagent.Environment, inner_class: docker}
    agent:       {agent_class: thunder_integrations.minisweagent.Agent}

or around what there is::

    agent = thunder_integrations.minisweagent.instrument(DefaultAgent(model, env, **config), group="eval-1")
    agent.run(task)

`Model` alone is enough for identity, acting and the end with its status: the stock SWE-bench runner takes no
other class. `Environment` adds exact spans and declares its container, which carries the program's label.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Self

import thunder_sdk as thunder
from thunder_integrations._minisweagent_runs import Options, Runs, outcome_of


class Model:
    """Any model of mini-swe-agent; what it asks carries the identity of its run.

    Args:
        inner_class: what ``model_class`` would say without us: a short name or a dotted path.
        program: options for the programs, like ``{"group": "eval-1", "priority": 1}``.
        config: the model's own configuration.
    """

    def __init__(self, *, inner_class: str = "", program: Options = None, **config: Any) -> None:
        from minisweagent.models import get_model_class

        made: Any = get_model_class(str(config.get("model_name", "")), inner_class)
        self._begin(made(**config), Runs(program))
        weakref.finalize(self, self.runs.abandon)

    @classmethod
    def around(cls, inner: Any, runs: Runs) -> Self:
        """A model that exists already."""
        self = cls.__new__(cls)
        self._begin(inner, runs)
        return self

    def _begin(self, inner: Any, runs: Runs) -> None:
        from thunder_integrations.litellm import install

        install()
        self._inner = inner
        self.runs = runs
        _latest.set(weakref.ref(self))

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """One call of the run's program."""
        run = self.runs.current()
        run.asked(messages)
        with run.activate():
            message: dict[str, Any] = self._inner.query(messages, **kwargs)
        if message.get("extra", {}).get("actions") and not self.runs.spans_per_action:
            run.acts()
        return message

    def get_template_vars(self, *args: Any, **kwargs: Any) -> Any:
        """Asked for right after the environment's, by an agent that has both: they are of the same run."""
        asked = _asked.get()
        _asked.set(None)
        environment = None if asked is None else asked()
        if environment is not None and not self.runs.under_way:
            self.runs = environment.runs
        return self._inner.get_template_vars(*args, **kwargs)

    def format_observation_messages(self, *args: Any, **kwargs: Any) -> Any:
        """The actions have run."""
        self.runs.current().acted()
        return self._inner.format_observation_messages(*args, **kwargs)

    def serialize(self) -> Any:
        """Asked for after every step: the time to see whether it was the last."""
        self.runs.settle()
        return self._inner.serialize()

    def __getattr__(self, name: str) -> Any:
        return _inner_attribute(self, name)


class Environment:
    """Any environment of mini-swe-agent; what runs in it is acting, and its container is the program's.

    Args:
        inner_class: what ``environment_class`` would say without us: ``docker``, ``local``, a dotted path.
        keep: the container must outlive the run, for what you do in it then.
        program: as for `Model`. Give it here if both are ours: the container is the first to need it.
        config: the environment's own configuration.
    """

    def __init__(
        self, *, inner_class: str = "local", keep: bool = False, program: Options = None, **config: Any
    ) -> None:
        self._begin(Runs(program))
        weakref.finalize(self, self.runs.abandon)
        self._start(inner_class, keep, config)

    @classmethod
    def around(cls, inner: Any, runs: Runs) -> Self:
        """An environment that exists already, and stays its maker's: its container is declared, but kept."""
        self = cls.__new__(cls)
        self._begin(runs)
        self._inner = inner
        runs.hold(_container(inner), keep=True)
        return self

    def _begin(self, runs: Runs) -> None:
        self.runs = runs
        runs.spans_per_action = True

    def _start(self, inner_class: str, keep: bool, config: dict[str, Any]) -> None:
        from minisweagent.environments import get_environment_class

        made: Any = get_environment_class(inner_class)
        program = self.runs.current().program
        if program.headers():  # not while disabled
            config = _labelled(made, config, f"thunder.program={program.id}")
        self._inner = made(**config)
        self.runs.hold(_container(self._inner), keep)

    def get_template_vars(self, *args: Any, **kwargs: Any) -> Any:
        """The agent asks its model next."""
        _asked.set(weakref.ref(self))
        return self._inner.get_template_vars(*args, **kwargs)

    def execute(self, action: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """One acting block of the run's program."""
        from minisweagent.exceptions import InterruptAgentFlow

        _asked.set(None)  # if the agent's model is none of ours
        with self.runs.current().acting():
            try:
                output: dict[str, Any] = self._inner.execute(action, *args, **kwargs)
            except InterruptAgentFlow as flow:  # how a submission arrives: no failure of the tool
                interruption = flow
            else:
                return output
        raise interruption

    def __getattr__(self, name: str) -> Any:
        return _inner_attribute(self, name)


class SWEBenchEnvironment(Environment):
    """The Docker environment of the stock SWE-bench runner.

    That runner names the instance's image to environments that it knows by name, no others. This one reads it
    in the first line of the start-up command, which is a template over the instance::

        run:
          env_startup_command: >-
            docker.io/swebench/sweb.eval.x86_64.{{ instance_id | replace("__", "_1776_") }}:latest
        environment:
          environment_class: thunder_integrations.minisweagent.SWEBenchEnvironment

    Further lines are commands. The program is that of the model which the runner made just before, in the
    same thread.
    """

    def __init__(self, *, inner_class: str = "docker", keep: bool = False, **config: Any) -> None:
        latest = _latest.get()
        model = None if latest is None else latest()
        if model is None:
            raise thunder.ThunderConfigError(
                "SWEBenchEnvironment goes with model_class: thunder_integrations.minisweagent.Model"
            )
        self._begin(model.runs)
        self._recipe: tuple[str, bool, dict[str, Any]] | None = (inner_class, keep, config)

    def execute(self, action: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The first command starts the container."""
        if self._recipe is not None:
            (inner_class, keep, config), self._recipe = self._recipe, None
            image, _, command = action["command"].strip().partition("\n")
            self._start(inner_class, keep, {**config, "image": image.strip().lower()})
            action = {**action, "command": command or "true"}
        return super().execute(action, *args, **kwargs)


class Agent:
    """Any agent of mini-swe-agent; its runs are programs that end when `run` does.

    Args:
        model, env: ours or any.
        inner_class: what ``agent_class`` would say without us.
        program: as for `Model`; what an `Environment` or `Model` of ours says goes before it.
        config: the agent's own configuration.
    """

    def __init__(
        self, model: Any, env: Any, *, inner_class: str = "default", program: Options = None, **config: Any
    ) -> None:
        from minisweagent.agents import get_agent_class

        made: Any = get_agent_class(inner_class)
        self._begin(made(model, env, **config), program)

    @classmethod
    def around(cls, inner: Any, program: Options) -> Self:
        """An agent that exists already."""
        self = cls.__new__(cls)
        self._begin(inner, program)
        return self

    def _begin(self, inner: Any, program: Options) -> None:
        ours = [part for part in (inner.env, inner.model) if isinstance(part, (Environment, Model))]
        self.runs = ours[0].runs if ours else Runs(program)
        for part in ours:
            part.runs = self.runs
        if not isinstance(inner.model, Model):
            inner.model = Model.around(inner.model, self.runs)
        if not isinstance(inner.env, Environment):
            inner.env = Environment.around(inner.env, self.runs)
        self._inner = inner

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        """One program."""
        run = self.runs.current()
        try:
            result: dict[str, Any] = self._inner.run(task, **kwargs)
        except BaseException as error:
            run.close("error" if isinstance(error, Exception) else "dropped")
            raise
        run.close(outcome_of(result) if isinstance(result, Mapping) else "success")
        return result

    def __getattr__(self, name: str) -> Any:
        return _inner_attribute(self, name)


def instrument(agent: Any, *, program: thunder.Program | None = None, **options: Any) -> Agent:
    """`agent`, of any class, with its model and environment wrapped. Run what this returns.

    Args:
        agent: has ``model``, ``env`` and ``run``.
        program: one of yours that all its runs belong to, and that you end.
        options: otherwise, what `thunder_sdk.program` takes, for the program of each run.
    """
    return Agent.around(agent, program or options)


# The model made last in this context.
_latest: ContextVar[weakref.ref[Model] | None] = ContextVar("thunder_minisweagent_model", default=None)
# The environment whose variables an agent has just asked for, in this context.
_asked: ContextVar[weakref.ref[Environment] | None] = ContextVar("thunder_minisweagent_asked", default=None)


def _inner_attribute(outer: Any, name: str) -> Any:
    if "_inner" not in vars(outer):  # not begun yet: being copied, or not started
        raise AttributeError(name)
    return getattr(outer._inner, name)


def _container(environment: Any) -> str | None:
    """Its id or name, whatever kind of environment it is."""
    own = getattr(environment, "container_id", None)
    return own or getattr(getattr(environment, "deployment", None), "container_name", None)


def _labelled(made: Any, config: dict[str, Any], label: str) -> dict[str, Any]:
    """`config` with a label for the container that an environment of class `made` is going to start."""
    from minisweagent.environments.docker import DockerEnvironment, DockerEnvironmentConfig

    if issubclass(made, DockerEnvironment):
        default = DockerEnvironmentConfig.model_fields["run_args"].default
        return {**config, "run_args": [*config.get("run_args", default), "--label", label]}
    if made.__name__ == "SwerexDockerEnvironment":
        extra = config.get("deployment_extra_kwargs", {})
        arguments = [*extra.get("docker_args", []), "--label", label]
        return {**config, "deployment_extra_kwargs": {**extra, "docker_args": arguments}}
    return config
