"""What the tests run in the lane: ``agents.py NAME``, one function each."""

from __future__ import annotations

import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minisweagent.agents import get_agent
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model
from minisweagent.models.litellm_model import LitellmModel

import thunder_sdk as thunder
from thunder_integrations import minisweagent as adapter

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")

NAME = "thunder_integrations.minisweagent"
MODEL = {"model_name": "openai/" + os.environ["MODEL"], "model_kwargs": {"drop_params": True}}
AGENT = {"system_template": "You solve tasks.", "instance_template": "{{task}}", "step_limit": 9}


def told(**facts: object) -> None:
    """The last line is what the test reads."""
    print(json.dumps(facts))


def by_configuration() -> None:
    """What ``mini`` does with a configuration that names all three classes."""
    model = get_model(config={"model_class": f"{NAME}.Model", "program": {"group": "eval-1"}, **MODEL})
    env = get_environment({"environment_class": f"{NAME}.Environment", "inner_class": "local", "cwd": "/tmp"})
    agent = get_agent(model, env, {"agent_class": f"{NAME}.Agent", **AGENT})
    told(info=agent.run("solve it"), calls=agent.n_calls)


def by_composition() -> None:
    """Around objects that exist; two runs, two programs."""
    model = LitellmModel(**MODEL)
    agent = adapter.instrument(
        DefaultAgent(model, LocalEnvironment(cwd="/tmp"), **AGENT), name="a", priority=2
    )
    told(infos=[agent.run("first"), agent.run("second")])


def model_alone() -> None:
    """Only the model is ours."""
    agent = DefaultAgent(adapter.Model(**MODEL), LocalEnvironment(cwd="/tmp"), **AGENT)
    told(info=agent.run("solve it"))


def in_my_program() -> None:
    """Runs take part in the program that is current."""
    with thunder.program(program_id="mine"):
        agent = DefaultAgent(adapter.Model(**MODEL), LocalEnvironment(cwd="/tmp"), **AGENT)
        first = agent.run("first")
        second = adapter.instrument(DefaultAgent(LitellmModel(**MODEL), LocalEnvironment(), **AGENT)).run(
            "second"
        )
    told(infos=[first, second])


def batch() -> None:
    """As the SWE-bench runner does it: a pool whose workers keep their context, a model for every instance."""

    def instance(number: int) -> str:
        model = get_model(config={"model_class": f"{NAME}.Model", **MODEL})
        agent = DefaultAgent(model, LocalEnvironment(cwd="/tmp"), **AGENT)
        return agent.run(f"task-{number}")["exit_status"]

    with ThreadPoolExecutor(max_workers=3) as pool:
        told(statuses=list(pool.map(instance, range(9))))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
