"""OpenAI Agents: what the tests run."""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    RunConfig,
    RunHooks,
    function_tool,
    set_default_openai_api,
)
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.sandboxes import UnixLocalSandboxClient
from agents.sandbox.session import Instrumentation
from common import EXPECTED, MODEL, TASKS, bare_call, enough, in_threads, look, main, seen
from openai import AsyncOpenAI

import thunder_sdk as thunder
from thunder_integrations.openai_agents import Hooks, Runner, SandboxSink, as_tool, install


@function_tool
def lookup(key: str) -> str:
    """Looks a thing up."""
    return look(key)


@function_tool
def wander() -> str:
    """Calls the model from a thread of its own."""
    return bare_call()


@function_tool(failure_error_function=None)
def stumble() -> str:
    """Fails."""
    raise LookupError("stumbled")


def agent(name: str = "finder", **options) -> Agent:
    return Agent(name=name, instructions="Find it.", model=MODEL, tools=[lookup, wander, stumble], **options)


def set_up(api: str = "chat_completions") -> None:
    set_default_openai_api(api)
    install(AsyncOpenAI(max_retries=0))  # anew for every loop that uses it


async def run():
    set_up()
    result = await Runner.run(agent(), "Find both.", hooks=Hooks(expected=EXPECTED))
    return result.final_output


async def run_by_responses():
    set_up("responses")
    result = await Runner.run(agent(), "Find both.", hooks=Hooks(expected=EXPECTED))
    return result.final_output


async def stream():
    set_up()
    return await streamed()


async def stream_by_responses():
    set_up("responses")
    return await streamed()


async def streamed():
    result = Runner.run_streamed(agent(), "Find both.", hooks=Hooks(expected=EXPECTED))
    events, inside = 0, []
    async for _ in result.stream_events():
        events += 1
        inside.append(thunder.current_program())
    assert events > 5
    assert not any(inside)
    return result.final_output


def sync():
    set_up()
    return Runner.run_sync(agent(), "Find both.").final_output


async def inside():
    set_up()
    async with thunder.program("mine", program_id="mine"):
        first = await Runner.run(agent(), "Find both.")
        await Runner.run(agent(), "And again.")
    return first.final_output


async def fails():
    set_up()
    try:
        await Runner.run(agent(), "Find both.")
    except Exception as error:
        return type(error).__name__


async def fails_streaming():
    set_up()
    result = Runner.run_streamed(agent(), "Find both.")
    try:
        async for _ in result.stream_events():
            pass
    except Exception as error:
        return type(error).__name__


async def cancelled_stream():
    set_up()
    result = Runner.run_streamed(agent(), "Find both.")
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel()


async def cancelled():
    set_up()
    task = asyncio.create_task(Runner.run(agent(), "Find both."))
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    enough.set()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


def threads():
    def one(task: str) -> str:
        client = thunder.wrap_openai(AsyncOpenAI())  # asynchronous clients are bound to their loop
        models = OpenAIProvider(openai_client=client, use_responses=False)
        return Runner.run_sync(agent(task), task, run_config=RunConfig(model_provider=models)).final_output

    with thunder.program(program_id="main"):
        return in_threads(one, TASKS[:3])


async def wanders():
    set_up()
    return (await Runner.run(agent(), "Wander.")).final_output


async def fleet():
    set_up()

    async def one(task: str):
        return (await Runner.run(agent(task), task)).final_output

    return await asyncio.gather(*(one(task) for task in TASKS))


async def child():
    set_up()
    helper = agent("helper")
    boss = Agent(name="boss", model=MODEL, tools=[as_tool(helper, "ask_helper", "Asks the helper.")])
    return (await Runner.run(boss, "Delegate.")).final_output


async def plain_child():
    set_up()
    helper = agent("helper")
    boss = Agent(name="boss", model=MODEL, tools=[helper.as_tool("ask_helper", "Asks the helper.")])
    return (await Runner.run(boss, "Delegate.")).final_output


async def handoff():
    set_up()
    other = agent("other")
    first = Agent(name="first", model=MODEL, handoffs=[other])
    return (await Runner.run(first, "Hand it over.")).final_output


async def own_headers():
    class Mine(RunHooks):
        def __init__(self):
            self.heard = []

        async def on_tool_start(self, context, agent, tool):
            self.heard.append(tool.name)

        async def on_handoff(self, context, from_agent, to_agent):
            self.heard.append("handoff")

        async def on_llm_end(self, context, agent, response):
            self.heard.append("llm")

    set_up()
    set_up()
    mine = Mine()
    settings = ModelSettings(
        extra_headers={"X-Mine": "1", "x-session-id": "my-own"}, extra_body={"user": "me"}
    )
    result = await Runner.run(agent(model_settings=settings), "Find both.", hooks=mine)
    assert mine.heard == ["llm", "lookup", "lookup", "llm"], mine.heard
    return result.final_output


async def sandbox():
    set_up()
    sandboxes = UnixLocalSandboxClient(instrumentation=Instrumentation(sinks=[SandboxSink()]))
    return await boxed(RunConfig(sandbox=SandboxRunConfig(client=sandboxes)))


async def docker_sandbox():
    from agents.sandbox.sandboxes import DockerSandboxClient, DockerSandboxClientOptions
    from docker import from_env

    set_up()
    engine = from_env()
    sandboxes = DockerSandboxClient(engine, instrumentation=Instrumentation(sinks=[SandboxSink()]))
    options = DockerSandboxClientOptions(image=os.environ["IMAGE"])
    answer = await boxed(RunConfig(sandbox=SandboxRunConfig(client=sandboxes, options=options)))
    engine.close()
    return answer


async def own_sandbox():
    """A session of the user's own, made outside of every program."""
    set_up()
    sandboxes = UnixLocalSandboxClient(instrumentation=Instrumentation(sinks=[SandboxSink()]))
    session = await sandboxes.create()
    async with session:
        answer = await boxed(RunConfig(sandbox=SandboxRunConfig(session=session)))
    await sandboxes.delete(session)
    return answer


async def boxed(config: RunConfig) -> str:
    worker = SandboxAgent(name="boxed", model=MODEL, instructions="Work.", capabilities=[Shell()])
    return (await Runner.run(worker, "Work.", run_config=config)).final_output


async def elsewhere():
    public = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=os.environ["ELSEWHERE"]))
    async with thunder.program(program_id="mine"):
        return (await Runner.run(Agent(name="public", model=public), "Hi.")).final_output


if __name__ == "__main__":
    main(globals())
