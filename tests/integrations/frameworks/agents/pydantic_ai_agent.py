"""pydantic-ai: what the tests run."""

import asyncio
import os

from common import BASE_URL, EXPECTED, MODEL, TASKS, bare_call, enough, in_threads, look, main, seen
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import thunder_sdk as thunder
from thunder_integrations.pydantic_ai import Thunder


def model(kind=OpenAIChatModel, base_url: str = BASE_URL, **options):
    client = AsyncOpenAI(base_url=base_url, max_retries=0, **options)
    return kind(MODEL, provider=OpenAIProvider(openai_client=client))


def agent(name: str = "finder", *, at=None, expected=EXPECTED, **options) -> Agent:
    made = Agent(at or model(), name=name, capabilities=[Thunder(expected=expected)], **options)

    @made.tool_plain(metadata={"expected_s": 4})
    def lookup(key: str) -> str:
        return look(key)

    @made.tool_plain
    def wander() -> str:
        return bare_call()

    return made


async def run():
    return (await agent(expected={}).run("Find both.")).output


async def run_by_responses():
    return (await agent(at=model(OpenAIResponsesModel)).run("Find both.")).output


def sync():
    return agent().run_sync("Find both.").output


async def stream():
    async with agent().run_stream("Find both.") as result:
        return [text async for text in result.stream_text()][-1]


async def twice():
    """One for the agent and one for the run."""
    return (await agent().run("Find both.", capabilities=[Thunder()])).output


async def stepped():
    async with agent().iter("Find both.") as steps:
        async for _ in steps:
            pass
    return steps.result.output


async def inside():
    async with thunder.program(program_id="mine"):
        await agent().run("And again.")
        return (await agent().run("Find both.")).output


async def fails():
    try:
        await agent().run("Find both.")
    except Exception as error:
        return type(error).__name__


async def cancelled():
    task = asyncio.create_task(agent().run("Find both."))
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    enough.set()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


def threads():
    with thunder.program(program_id="main"):
        return in_threads(lambda task: agent(task).run_sync(task).output, TASKS[:3])


async def wanders():
    return (await agent().run("Wander.")).output


async def fleet():
    shared = model()

    async def one(task: str):
        return (await agent(task, at=shared).run(task)).output

    return await asyncio.gather(*(one(task) for task in TASKS))


async def child():
    helper, boss = agent("helper"), agent("boss")

    @boss.tool_plain
    async def ask_helper(question: str) -> str:
        return (await helper.run(question)).output

    return (await boss.run("Delegate.")).output


async def own_headers():
    settings = {"extra_headers": {"X-Mine": "1", "x-session-id": "my-own"}, "extra_body": {"user": "me"}}
    return (await agent(model_settings=settings).run("Find both.")).output


async def elsewhere():
    """The first model fails, and a public provider's stands in."""
    both = FallbackModel(model(), model(base_url=os.environ["ELSEWHERE"]))
    return (await agent(at=both).run("Hi.")).output


async def wrapped_by_hand():
    """No server is configured: the client's base URL says where it is."""
    at = model()
    thunder.wrap_openai(at.client)
    return (await agent(at=at).run("Find both.")).output


if __name__ == "__main__":
    main(globals())
