"""Agents of mini-swe-agent, one per scenario: ``agents.py SCENARIO``. What they print last is the result."""

import json
import logging
import os
import sys
import types
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

OURS = "thunder_integrations.minisweagent"
MODEL = {
    "model_name": "openai/" + os.environ["MODEL"],
    "model_kwargs": {
        "extra_headers": {"X-Own": "1", "x-thunder-priority": "5"},
        "extra_body": {"seed": 7},
        "temperature": 0.5,
    },
}
AGENT = {"system_template": "You solve tasks.", "instance_template": "{{task}}", "step_limit": 9}


def program(name, **options):
    return {"program_id": name, **options}


def configured():
    """As ``mini`` does it with a configuration that names all three classes."""
    model = get_model(config={"model_class": f"{OURS}.Model", **MODEL})
    env = get_environment(
        {
            "environment_class": f"{OURS}.Environment",
            "inner_class": "local",
            "program": program("configured", group="eval-1", priority=2),
        }
    )
    agent = get_agent(model, env, {"agent_class": f"{OURS}.Agent", **AGENT})
    return [agent.run("solve it"), agent.n_calls, agent.model.config.model_name]


def composed():
    """Around objects that exist; two runs, two programs."""
    inner = DefaultAgent(LitellmModel(**MODEL), LocalEnvironment(), **AGENT)
    agent = adapter.instrument(adapter.instrument(inner, **program("composed")))
    return [agent.run("first"), agent.run("second")]


def model_alone():
    """Only the model is ours."""
    model = adapter.Model(program=program("model-alone"), **MODEL)
    return [DefaultAgent(model, LocalEnvironment(), **AGENT).run("solve it")]


def without_agent_class():
    """Two agents of the stock class, made crosswise: who belongs together shows when they run."""
    models = [adapter.Model(**MODEL), adapter.Model(**MODEL)]
    environments = [
        adapter.Environment(inner_class="local", program=program(f"pair-{number}")) for number in (1, 0)
    ]
    environments.reverse()
    pairs = zip(models, environments, strict=True)
    return [DefaultAgent(model, env, **AGENT).run(f"task-{n}") for n, (model, env) in enumerate(pairs)]


def responses():
    """The model class that uses ``/v1/responses``."""
    model = adapter.Model(
        inner_class="litellm_response",
        program=program("responses"),
        **{**MODEL, "model_kwargs": {"api_base": os.environ["OPENAI_BASE_URL"]}},
    )
    return [DefaultAgent(model, LocalEnvironment(), **AGENT).run("solve it")]


def in_my_program():
    """Runs take part in the program that is current, or given."""
    with thunder.program(program_id="current"):
        agent = DefaultAgent(adapter.Model(**MODEL), LocalEnvironment(), **AGENT)
        first = agent.run("first")
    with thunder.program(program_id="given") as mine:
        inner = DefaultAgent(LitellmModel(**MODEL), LocalEnvironment(), **AGENT)
        second = adapter.instrument(inner, program=mine).run("second")
    return [first, second]


def every_way():
    adapter_again = __import__("thunder_integrations.litellm", fromlist=["install"])
    adapter_again.install()
    told = {scenario.__name__: scenario() for scenario in (configured, composed, model_alone, in_my_program)}
    adapter_again.install()
    return told | {"responses": responses(), "pairs": without_agent_class()}


def ends():
    """Out of steps, a command that never ends, an engine's error, an interrupt, and nothing at all."""

    class Interrupted(LocalEnvironment):
        def execute(self, *args, **kwargs):
            raise KeyboardInterrupt

    limited = DefaultAgent(
        adapter.Model(program=program("out-of-steps"), **MODEL),
        LocalEnvironment(),
        **{**AGENT, "step_limit": 1},
    )
    told = [limited.run("loop")["exit_status"]]
    for name, env in (("refused", LocalEnvironment()), ("interrupted", Interrupted())):
        inner = DefaultAgent(LitellmModel(**MODEL), env, **AGENT)
        try:
            adapter.instrument(inner, **program(name)).run(name)
        except BaseException as error:
            told.append(type(error).__name__)
    model = adapter.Model(program=program("forsaken"), **MODEL)
    model.query([{"role": "user", "content": "loop"}])
    del model
    adapter.Model(program=program("never-asked"), **MODEL)
    return told


def swebench():
    """The stock SWE-bench runner, its data set a list."""
    instances = [
        {"instance_id": f"task__{number}", "problem_statement": f"solve {number}"} for number in range(6)
    ]
    datasets = types.ModuleType("datasets")
    datasets.load_dataset = lambda path, split: instances
    sys.modules["datasets"] = datasets
    from minisweagent.run.benchmarks.swebench import app

    app(["-w", "3", "-o", "out", "-c", os.environ["CONFIG"]], standalone_mode=False)
    predictions = json.loads(Path("out/preds.json").read_text())
    return {name: prediction["model_patch"] for name, prediction in predictions.items()}


def threads():
    """Models in worker threads: each tags its own calls, and calls of others stay untagged."""
    import litellm

    def work(number):
        model = adapter.Model(program=program(f"thread-{number}"), **MODEL)
        answer = DefaultAgent(model, LocalEnvironment(), **AGENT).run(f"thread-{number}")
        litellm.completion(
            model=MODEL["model_name"], messages=[{"role": "user", "content": "nobody's"}]
        )  # the worker's context has seen a program before
        return answer["exit_status"]

    with thunder.program(program_id="main-thread"), ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(4)))


def elsewhere():
    """A model on somebody else's host."""
    there = {**MODEL, "model_kwargs": {"api_base": os.environ["ELSEWHERE"], "api_key": "k"}}
    model = adapter.Model(program=program("elsewhere"), **there)
    return DefaultAgent(model, LocalEnvironment(), **AGENT).run("solve it")


def simple():
    inner = DefaultAgent(LitellmModel(**MODEL), LocalEnvironment(), **AGENT)
    return adapter.instrument(inner, **program("simple")).run("solve it")


def docker():
    """A container of the program's own, and what the engine knows of it while the agent runs."""
    env = adapter.Environment(
        inner_class="docker",
        program=program("in-docker"),
        image=os.environ["IMAGE"],
        interpreter=["sh", "-c"],
        run_args=["--rm", "--label", "own=1"],
    )
    model = adapter.Model(**MODEL)
    told = adapter.Agent(model, env, **AGENT).run("solve it")
    return [told, env.container_id, env.config.run_args]


def killed():
    """An agent whose process does not live to clean up."""
    env = adapter.Environment(
        inner_class="docker",
        program=program("killed", lease=2),
        image=os.environ["IMAGE"],
        interpreter=["sh", "-c"],
    )
    Path("container").write_text(env.container_id)
    adapter.Agent(adapter.Model(**MODEL), env, **AGENT).run("hang")


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    print(f"\n{json.dumps(result)}")
