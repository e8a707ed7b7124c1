"""smolagents: what the tests run."""

import os

from common import BASE_URL, EXPECTED, MODEL, TASKS, bare_call, in_threads, look, main
from smolagents import LocalPythonExecutor, OpenAIModel, tool

import thunder_sdk as thunder
from thunder_integrations.smolagents import CodeAgent, ToolCallingAgent


@tool
def lookup(key: str) -> str:
    """Looks a thing up.

    Args:
        key: which
    """
    return look(key)


@tool
def wander() -> str:
    """Calls the model from a thread of its own."""
    return bare_call()


def model(base_url: str = BASE_URL, **options) -> OpenAIModel:
    return OpenAIModel(MODEL, api_base=base_url, api_key="sk-test", retry=False, **options)


def agent(name: str = "finder", kind=ToolCallingAgent, tools=(lookup, wander), **options):
    options = {"model": model(), "verbosity_level": 0, "max_steps": 4, **options}
    return kind(tools=list(tools), name=name, description=name, **options)


def coder(name: str = "coder", **options):
    return agent(name, CodeAgent, code_block_tags="markdown", **options)


def run():
    return agent(expected=EXPECTED).run("Find both.")


def stream():
    inside, answer = [], None
    for step in agent(expected=EXPECTED, stream_outputs=True).run("Find both.", stream=True):
        inside.append(thunder.current_program())
        answer = getattr(step, "output", None)
    assert not any(inside), inside
    return answer


def abandoned():
    for _ in agent().run("Find both.", stream=True):
        break


def inside():
    with thunder.program(program_id="mine"):
        agent().run("And again.")
        return agent().run("Find both.")


def fails():
    try:
        agent().run("Find both.")
    except Exception as error:
        return type(error).__name__


def threads():
    with thunder.program(program_id="main"):
        return in_threads(lambda task: agent(task.replace("-", "_")).run(task), TASKS[:3])


def wanders():
    return agent().run("Wander.")


def fleet():
    return in_threads(lambda task: agent(task.replace("-", "_")).run(task), TASKS)


def child():
    helper = agent("helper")
    return agent("boss", tools=[], managed_agents=[helper]).run("Delegate.")


def code():
    return coder(expected={"python_interpreter": 4.0}).run("Find both.")


def sandbox():
    """Its executor has a container, as smolagents' for Docker, E2B and the like do."""
    from docker import from_env

    with thunder.program(program_id="mine"):
        executor = LocalPythonExecutor([])
        executor.container = from_env().containers.run(os.environ["IMAGE"], detach=True)
        coder(executor=executor).run("Find both.")
    return executor.container.id


def code_child():
    helper = agent("helper")
    return coder("boss", tools=[], managed_agents=[helper]).run("Delegate.")


def own_headers():
    headers = {"default_headers": {"X-Mine": "1", "x-session-id": "my-own"}}
    mine = model(client_kwargs=headers, extra_body={"user": "me"})
    return agent(model=mine).run("Find both.")


def elsewhere():
    with thunder.program(program_id="mine"):
        return agent(model=model(os.environ["ELSEWHERE"])).run("Hi.")


def wrapped_by_hand():
    """No server is configured: the client's base URL says where it is."""
    mine = model()
    thunder.wrap_openai(mine.client)
    return agent(model=mine).run("Find both.")


if __name__ == "__main__":
    main(globals())
