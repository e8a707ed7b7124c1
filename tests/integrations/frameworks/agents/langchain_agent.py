"""LangChain and LangGraph: what the tests run."""

import asyncio
import os
import threading
from typing import TypedDict

from common import EXPECTED, MODEL, TASKS, bare_call, enough, in_threads, look, main, seen
from langchain.agents import create_agent
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

import thunder_sdk as thunder
from thunder_integrations import langchain as thunder_langchain

thunder_langchain.install()
thunder_langchain.install(expected=EXPECTED)  # twice is harmless


@tool
def lookup(key: str) -> str:
    """Looks a thing up."""
    return look(key)


@tool
def wander() -> str:
    """Calls the model from a thread of its own."""
    return bare_call()


def model(**options) -> ChatOpenAI:
    return thunder_langchain.wrap(ChatOpenAI(model=MODEL, max_retries=0, **options))


def agent(name: str = "finder", tools=(lookup, wander), **options):
    return create_agent(model(**options), list(tools), name=name)


def asks(text: str) -> dict:
    return {"messages": [("user", text)]}


def last(state) -> str:
    return state["messages"][-1].text


def run():
    return last(agent().invoke(asks("Find both.")))


async def run_async():
    return last(await agent().ainvoke(asks("Find both.")))


def stream():
    inside, answer = [], None
    for state in agent(streaming=True).stream(asks("Find both."), stream_mode="values"):
        inside.append(thunder.current_program())
        answer = last(state)
    assert not any(inside), inside
    return answer


async def stream_async():
    inside, words = [], []
    async for piece, _ in agent(streaming=True).astream(asks("Find both."), stream_mode="messages"):
        inside.append(thunder.current_program())
        if piece.type.startswith("AI"):
            words.append(piece.text)
    assert not any(inside), inside
    return "".join(words)


def abandoned():
    stream = agent().stream(asks("Find both."), stream_mode="values")
    for state in stream:
        if state["messages"][-1].type == "ai":
            break
    stream.close()


def inside():
    with thunder.program(program_id="mine"):
        agent().invoke(asks("And again."))
        return last(agent().invoke(asks("Find both.")))


def retries():
    retrying = thunder_langchain.wrap(ChatOpenAI(model=MODEL, max_retries=2))
    return last(create_agent(retrying, [lookup], name="finder").invoke(asks("Find both.")))


def fails():
    try:
        agent().invoke(asks("Find both."))
    except Exception as error:
        return type(error).__name__


async def cancelled():
    task = asyncio.create_task(agent().ainvoke(asks("Find both.")))
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    enough.set()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


def threads():
    with thunder.program(program_id="main"):
        return in_threads(lambda task: last(agent(task).invoke(asks(task))), TASKS[:3])


def wanders():
    return last(agent().invoke(asks("Wander.")))


def config_in_a_thread():
    """A thread that knows no context, but is given LangChain's config."""

    class State(TypedDict):
        answer: str

    def node(state: State, config: RunnableConfig) -> State:
        done = []
        thread = threading.Thread(target=lambda: done.append(model().invoke("Hi.", config).text))
        thread.start()
        thread.join()
        return {"answer": done[0]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END)
    return graph.compile(name="graph").invoke({"answer": ""})["answer"]


async def fleet():
    async def one(task: str):
        return last(await agent(task).ainvoke(asks(task)))

    return await asyncio.gather(*(one(task) for task in TASKS))


def child():
    helper = agent("helper")

    @tool
    def ask_helper(question: str) -> str:
        """Asks the helper."""
        return last(helper.invoke(asks(question)))

    return last(agent("boss", [ask_helper]).invoke(asks("Delegate.")))


def program_in_a_tool():
    @tool
    def ask_helper(question: str) -> str:
        """Asks the helper, in a program that the user opens."""
        with thunder.program(program_id="sub"):
            lookup.invoke({"key": "it"})
            agent("helper").invoke(asks(question))
            return model().invoke("Hi.").text

    return last(agent("boss", [ask_helper]).invoke(asks("Delegate.")))


def another_framework():
    """The helper is an agent of pydantic-ai."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    from thunder_integrations.pydantic_ai import Thunder

    helper = Agent(OpenAIChatModel(MODEL), name="helper", capabilities=[Thunder()], tools=[lookup.func])

    @tool
    def ask_helper(question: str) -> str:
        """Asks the helper."""
        return helper.run_sync(question).output

    return last(agent("boss", [ask_helper]).invoke(asks("Delegate.")))


def subgraph():
    graph = StateGraph(MessagesState).add_node("inner", agent("inner"))
    graph = graph.add_edge(START, "inner").add_edge("inner", END).compile(name="outer")
    return last(graph.invoke(asks("Find both.")))


def chain():
    pipe = ChatPromptTemplate.from_messages([("user", "{text}")]) | model() | StrOutputParser()
    return pipe.with_config(run_name="pipe").invoke({"text": "Hi."})


async def chain_async():
    pipe = ChatPromptTemplate.from_messages([("user", "{text}")]) | model() | StrOutputParser()
    return await pipe.with_config(run_name="pipe").ainvoke({"text": "Hi."})


def no_model():
    return RunnableLambda(lambda text: text + "!").invoke("nothing to schedule")


def bare_model():
    outside = model().invoke("Hi.").text
    with thunder.program(program_id="mine"):
        lookup.invoke({"key": "it"})
        return [outside, model().invoke("Hi.").text]


def own_headers():
    settings = {"default_headers": {"X-Mine": "1", "x-session-id": "my-own"}, "extra_body": {"user": "me"}}
    return last(agent(**settings).invoke(asks("Find both.")))


def elsewhere():
    """The first model fails, and a public provider's stands in."""
    public = ChatOpenAI(model=MODEL, base_url=os.environ["ELSEWHERE"])
    return model().with_fallbacks([public]).invoke("Hi.").text


def responses():
    return last(agent(use_responses_api=True).invoke(asks("Find both.")))


if __name__ == "__main__":
    main(globals())
