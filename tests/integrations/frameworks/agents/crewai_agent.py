"""CrewAI: what the tests run."""

import asyncio
import os

import httpx
from common import BASE_URL, EXPECTED, MODEL, TASKS, bare_call, enough, in_threads, look, main, seen
from crewai import LLM, Agent, Crew, Process, Task
from crewai.flow.flow import Flow, start
from crewai.llms.hooks.base import BaseInterceptor
from crewai.tools import tool

import thunder_sdk as thunder
from thunder_integrations import crewai as thunder_crewai

thunder_crewai.install()
thunder_crewai.install(expected=EXPECTED)  # twice is harmless


@tool("lookup")
def lookup(key: str) -> str:
    """Looks a thing up."""
    return look(key)


@tool("wander")
def wander() -> str:
    """Calls the model from a thread of its own."""
    return bare_call()


def model(base_url: str = BASE_URL, **options) -> LLM:
    options = {"interceptor": thunder_crewai.Interceptor(), **options}
    return LLM(model=MODEL, custom_openai=True, base_url=base_url, max_retries=0, **options)


def agent(role: str = "finder", tools=(lookup, wander), *, llm=None, **options) -> Agent:
    options = {"goal": "find it", "backstory": "a finder", "max_iter": 5, "max_retry_limit": 0, **options}
    return Agent(role=role, llm=llm or model(), tools=list(tools), **options)


def crew(name: str = "finders", text: str = "Find both.", *, by: Agent | None = None, **options) -> Crew:
    by = by or agent()
    task = Task(description=text, expected_output="what was found", agent=by)
    return Crew(name=name, agents=[by], tasks=[task], **options)


def run():
    return crew().kickoff().raw


async def run_async():
    return (await crew().akickoff()).raw


async def run_in_a_thread():
    return (await crew().kickoff_async()).raw


def stream():
    inside, words = [], []
    output = crew(stream=True).kickoff()
    for piece in output:
        inside.append(thunder.current_program())
        words.append(piece.content)
    assert not any(inside), inside
    assert len(words) > 1
    return output.result.raw


def inside():
    with thunder.program(program_id="mine"):
        crew(text="And again.").kickoff()
        return crew().kickoff().raw


def fails():
    try:
        crew().kickoff()
    except Exception as error:
        return type(error).__name__


async def cancelled():
    task = asyncio.create_task(crew().akickoff())
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    enough.set()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


def threads():
    with thunder.program(program_id="main"):
        return in_threads(lambda task: crew(task, task).kickoff().raw, TASKS[:3])


def wanders():
    return crew(text="Wander.").kickoff().raw


async def fleet():
    outputs = await asyncio.gather(*(crew(task, task).akickoff() for task in TASKS))
    return [output.raw for output in outputs]


def each():
    found = crew("finders", "Find {what}.").kickoff_for_each([{"what": "task-1"}, {"what": "task-2"}])
    return [output.raw for output in found]


def two_tasks():
    by = agent()
    tasks = [Task(description=text, expected_output="what was found", agent=by) for text in ("One.", "Two.")]
    return Crew(name="pair", agents=[by], tasks=tasks, process=Process.sequential).kickoff().raw


def child():
    boss, helper = agent("boss", [], allow_delegation=True), agent("helper")
    task = Task(description="Delegate.", expected_output="a report", agent=boss)
    return Crew(name="boss", agents=[boss, helper], tasks=[task]).kickoff().raw


def lone_agent():
    return agent().kickoff("Find both.").raw


def flow():
    class Journey(Flow):
        @start()
        def begin(self):
            return crew().kickoff().raw

    return Journey().kickoff()


class Mine(BaseInterceptor[httpx.Request, httpx.Response]):
    """An interceptor of the user's own."""

    def on_outbound(self, message):
        message.headers["X-Mine"] = "1"
        message.headers["x-session-id"] = "my-own"
        return message

    def on_inbound(self, message):
        return message


def own_headers():
    llm = model(interceptor=thunder_crewai.Interceptor(Mine()), additional_params={"user": "me"})
    return crew(by=agent(llm=llm)).kickoff().raw


def elsewhere():
    with thunder.program(program_id="mine"):
        return crew(by=agent(llm=model(os.environ["ELSEWHERE"]))).kickoff().raw


if __name__ == "__main__":
    main(globals())
