"""SWE-agent by its contract: who is called when, in a single run and in a batch with worker threads.

``stand_in.py SCENARIO``. The hooks are called by keyword, in SWE-agent's order, in its threads; commands run
in a real runtime of swe-rex, and the model is asked through the real LiteLLM.
"""

import asyncio
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import litellm
from swerex.deployment.config import DockerDeploymentConfig
from swerex.runtime.abstract import BashAction
from swerex.runtime.dummy import DummyRuntime

import thunder_sdk as thunder
from thunder_integrations import sweagent as adapter

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
BASE = os.environ["OPENAI_BASE_URL"]


class Hooks:
    def __init__(self):
        self.hooks = []

    def __getattr__(self, name):
        return lambda **said: [getattr(hook, name)(**said) for hook in self.hooks]


class Env:
    """Its container's name is known while it runs, and forgotten when it has been stopped."""

    def __init__(self, name):
        self.hooks = Hooks()
        self.name = name
        self.starts = 0
        self.deployment = SimpleNamespace(container_name=None, runtime=DummyRuntime())

    def add_hook(self, hook):
        hook.on_init(env=self)
        self.hooks.hooks.append(hook)

    def start(self):
        self.starts += 1
        self.hooks.on_start_deployment()
        self.deployment.container_name = f"{self.name}-{self.starts}"
        self.hooks.on_environment_startup()

    def communicate(self, command):
        asyncio.run(self.deployment.runtime.run_in_session(BashAction(command=command)))

    def close(self):
        self.deployment.container_name = None
        self.hooks.on_close()


class Agent:
    def __init__(self, base=BASE):
        self.hooks = Hooks()
        self.base = base

    def add_hook(self, hook):
        hook.on_init(agent=self)
        self.hooks.hooks.append(hook)

    def run(self, problem, env):
        self.hooks.on_run_start()
        for command in ("str_replace_editor view /src", "submit"):
            self.hooks.on_step_start()
            self.hooks.on_model_query(messages=[], agent="main")
            litellm.completion(
                model="openai/m",
                api_base=self.base,
                api_key="k",
                extra_headers={"User-Agent": "swe-agent/1.1.0"},
                messages=[{"role": "user", "content": problem.id}],
            )
            step = SimpleNamespace(action=command, execution_time=0.0)
            self.hooks.on_actions_generated(step=step)
            self.hooks.on_action_started(step=step)
            if problem.id.startswith("broken"):
                raise RuntimeError("the command broke off")
            env.communicate(command)
            self.hooks.on_action_executed(step=step)
            if problem.id.startswith("again") and env.starts == 1:  # RetryAgent's next attempt
                env.close()
                env.start()
            self.hooks.on_step_done(step=step, info={})
        info = {"exit_status": "exit_cost" if problem.id.startswith("limited") else "submitted"}
        self.hooks.on_run_done(trajectory=[], info=info)
        return SimpleNamespace(info=info)


class Single:
    def __init__(self, name, base=BASE):
        self.hooks = Hooks()
        self.problem_statement, self.env = SimpleNamespace(id=name), Env(name)
        self.agent = Agent(base)

    def add_hook(self, hook):
        hook.on_init(run=self)
        self.hooks.hooks.append(hook)

    def run(self):
        self.hooks.on_start()
        self.env.start()
        self.hooks.on_instance_start(index=0, env=self.env, problem_statement=self.problem_statement)
        result = self.agent.run(self.problem_statement, self.env)
        self.hooks.on_instance_completed(result=result)
        self.hooks.on_end()
        self.env.close()


class Batch:
    def __init__(self, names):
        self.hooks = Hooks()
        self.instances = [
            SimpleNamespace(
                problem_statement=SimpleNamespace(id=name),
                env=SimpleNamespace(
                    deployment=DockerDeploymentConfig(image="i", docker_args=["--network=none"])
                ),
            )
            for name in names
        ]

    def add_hook(self, hook):
        hook.on_init(run=self)
        self.hooks.hooks.append(hook)

    def main(self):
        self.hooks.on_start()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(self.instance, self.instances))
        self.hooks.on_end()

    def instance(self, instance):
        try:
            env = Env(instance.problem_statement.id)
            try:
                env.start()
                self.hooks.on_instance_start(index=0, env=env, problem_statement=instance.problem_statement)
                result = Agent().run(instance.problem_statement, env)
            finally:
                env.close()
            self.hooks.on_instance_completed(result=result)
        except RuntimeError:
            pass  # told in its log, and on it goes


def singles():
    told = {}
    for name in ("solved", "limited", "again", "broken"):
        try:
            with adapter.RunHook(program_id=name, group="eval-1") as hook:
                run = Single(name)
                run.add_hook(hook)
                if name == "solved":
                    run.add_hook(hook)  # once more than needed
                run.run()
                if name == "limited":
                    again = Single(name)
                    again.add_hook(hook)
                    again.run()
        except RuntimeError as error:
            told[name] = str(error)
    told["current"] = thunder.current_program() is None
    return told


def batch():
    batch = Batch([f"{kind}-{number}" for kind in ("solved", "broken", "again") for number in range(3)])
    with thunder.program(program_id="evaluation"):
        hook = adapter.RunHook(priority=2)
        batch.add_hook(hook)
        batch.add_hook(hook)  # once more than needed
        batch.main()
    arguments = [instance.env.deployment.docker_args for instance in batch.instances]
    return [[instance.problem_statement.id for instance in batch.instances], arguments]


def elsewhere():
    with adapter.RunHook(program_id="elsewhere") as hook:
        run = Single("elsewhere", os.environ["ELSEWHERE"])
        run.add_hook(hook)
        run.run()


def simple():
    with adapter.RunHook(program_id="simple") as hook:
        batch = Batch(["simple"])
        batch.add_hook(hook)
        batch.main()
    return batch.instances[0].env.deployment.docker_args


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    print(f"\n{json.dumps(result)}")
