"""AutoGen: what the tests run."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import BASE_URL, EXPECTED, MODEL, TASKS, bare_call, enough, in_threads, look, main, seen

import thunder_sdk as thunder
from thunder_integrations import autogen as thunder_autogen

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": ModelFamily.UNKNOWN,
}


async def lookup(key: str) -> str:
    """Looks a thing up."""
    return await asyncio.to_thread(look, key)


async def wander() -> str:
    """Calls the model from a thread of its own."""
    return await asyncio.to_thread(bare_call)


def client(base_url: str = BASE_URL, **options) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=MODEL,
        base_url=base_url,
        model_info=INFO,
        max_retries=0,
        http_client=thunder.async_http_client(),
        **options,
    )


def agent(name: str = "finder", tools=(lookup, wander), *, at=None, **options) -> AssistantAgent:
    options = {"reflect_on_tool_use": True, **options}
    return AssistantAgent(name, at or client(), tools=list(tools), **options)


def last(result) -> str:
    return result.messages[-1].to_text()


async def run():
    return last(await thunder_autogen.run(agent(), task="Find both.", expected=EXPECTED))


async def stream():
    inside, messages = [], []
    speaker = agent(model_client_stream=True)
    async for message in thunder_autogen.run_stream(speaker, task="Find both.", expected=EXPECTED):
        inside.append(thunder.current_program())
        messages.append(message)
    assert not any(inside), inside
    return last(messages[-1])


async def abandoned():
    stream = thunder_autogen.run_stream(agent(), task="Find both.")
    async for _ in stream:
        break
    await stream.aclose()


async def team():
    done = TextMentionTermination("found.") | MaxMessageTermination(10)
    crew = RoundRobinGroupChat([agent("one"), agent("two")], name="pair", termination_condition=done)
    return last(await thunder_autogen.run(crew, task="Find both.", expected=EXPECTED))


async def inside():
    async with thunder.program(program_id="mine"):
        await thunder_autogen.run(agent(), task="And again.")
        return last(await thunder_autogen.run(agent(), task="Find both."))


async def fails():
    try:
        await thunder_autogen.run(agent(), task="Find both.")
    except Exception as error:
        return type(error).__name__


async def cancelled():
    task = asyncio.create_task(thunder_autogen.run(agent(), task="Find both."))
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    enough.set()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


def threads():
    def one(task: str) -> str:
        return asyncio.run(thunder_autogen.run(agent(task.replace("-", "_")), task=task)).messages[-1].content

    with thunder.program(program_id="main"):
        return in_threads(one, TASKS[:3])


async def wanders():
    return last(await thunder_autogen.run(agent(), task="Wander."))


async def fleet():
    shared = client()

    async def one(task: str):
        return last(await thunder_autogen.run(agent(at=shared), task=task))

    return await asyncio.gather(*(one(task) for task in TASKS))


async def child():
    tool = thunder_autogen.AgentTool(agent("helper"), return_value_as_last_message=True)
    return last(await thunder_autogen.run(agent("boss", [tool]), task="Delegate."))


async def team_child():
    crew = RoundRobinGroupChat(
        [agent("one")], name="pair", termination_condition=TextMentionTermination("Found.")
    )
    tool = thunder_autogen.TeamTool(
        crew, name="helper", description="A team.", return_value_as_last_message=True
    )
    return last(await thunder_autogen.run(agent("boss", [tool]), task="Delegate."))


async def code():
    executor = LocalCommandLineCodeExecutor(work_dir=os.environ["HOME"])
    speaker = CodeExecutorAgent("coder", executor, model_client=client(), approval_func=None)
    await thunder_autogen.run(speaker, task="Find both.", expected={"code_executor": 4.0})


async def sandbox():
    from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

    executor = DockerCommandLineCodeExecutor(os.environ["IMAGE"], work_dir=os.environ["HOME"])
    async with thunder.program(program_id="mine"), thunder_autogen.sandbox(executor) as running:
        assert running is executor
        await thunder_autogen.run(agent(), task="Hi.")
    return executor.container_name


async def own_headers():
    headers = {"default_headers": {"X-Mine": "1", "x-session-id": "my-own"}, "user": "me"}
    return last(await thunder_autogen.run(agent(at=client(**headers)), task="Find both."))


async def elsewhere():
    async with thunder.program(program_id="mine"):
        return last(await thunder_autogen.run(agent(at=client(os.environ["ELSEWHERE"])), task="Hi."))


if __name__ == "__main__":
    main(globals())
