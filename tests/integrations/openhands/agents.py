"""Agents of OpenHands' SDK, one per scenario: ``agents.py SCENARIO``. What they print last is the result."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from threading import Thread

from openhands.sdk import LLM, Agent, RemoteWorkspace, Tool
from openhands.sdk.conversation import BaseConversation
from openhands.tools.preset.default import register_builtins_agents
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool

import thunder_sdk as thunder
from thunder_integrations.openhands import conversation

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", force=True)
register_builtins_agents(enable_browser=False)

BASE = os.environ["OPENAI_BASE_URL"]


def agent(base_url=BASE, **options):
    llm = LLM(
        model="openai/m",
        base_url=base_url,
        api_key="sk-test",
        num_retries=0,
        usage_id="agent",
        extra_headers={"X-Own": "1", "x-thunder-group": "mine"},
        litellm_extra_body={"seed": 7},
        **options,
    )
    return Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=TaskToolSet.name)])


def chat(text="list the files", *, place="project", of=None, **options):
    """A conversation that has run once."""
    made = conversation(of or agent(), workspace=place, visualizer=None, **options)
    made.send_message(text)
    return made


def facts(*conversations):
    return [[str(one.id), one.state.execution_status.value] for one in conversations]


def local():
    """Sync, async, streamed and forked."""
    mine = agent()
    with thunder.program(program_id="mine"):
        first = chat(of=mine, program={"name": "first", "group": "eval-1", "priority": 3})
    with first:
        first.run()
        with first.fork() as fork:
            fork.send_message("and now?")
            asyncio.run(fork.arun())
        words = []
        streamed = chat(
            of=agent(stream=True),
            token_callbacks=[lambda chunk: words.append(chunk.choices[0].delta.content)],
        )
        with streamed:
            streamed.run()
            told = facts(first, fork, streamed)
    return [told, bool(words), mine.llm.extra_headers, isinstance(first.inner, BaseConversation)]


def delegated():
    """A sub-agent, without and with LiteLLM's hook in the same process."""
    told = []
    for number in range(2):
        with chat("delegate") as made:
            made.run()
            told += facts(made)
        if number == 0:
            import thunder_integrations.litellm

            thunder_integrations.litellm.install()
    with thunder.program(program_id="around"), chat("delegate") as made:
        made.run()
        told += facts(made)
    return told


def ends():
    """Refused by the engine, interrupted, left by an exception, never run."""
    told = []
    with chat("refused") as refused:
        try:
            refused.run()
        except Exception as error:
            told.append(type(error).__name__)
    slow = chat("slow")

    async def interrupted():
        task = asyncio.create_task(slow.arun())
        await asyncio.to_thread(Path(os.environ["STARTED"]).read_text)
        slow.interrupt()
        await task

    asyncio.run(interrupted())
    slow.close()
    unrun = chat("unrun")
    unrun.close()
    unrun.close()
    try:
        with chat("broken") as broken:
            raise ValueError("mine")
    except ValueError:
        told.append("ValueError")
    return [told, *(str(one.id) for one in (refused, slow, unrun, broken))]


def threads():
    """Conversations in worker threads, and calls there that are nobody's."""
    import litellm

    import thunder_integrations.litellm

    thunder_integrations.litellm.install()
    told = {}

    def work(name):
        with chat(name, place=name) as made:
            made.run()
        told[name] = str(made.id)
        litellm.completion(
            model="openai/m", api_base=BASE, api_key="k", messages=[{"role": "user", "content": "nobody's"}]
        )

    with thunder.program(program_id="main-thread"):
        workers = [Thread(target=work, args=(f"thread-{number}",)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return told


def remote():
    """On an agent server: a run, a fork, a sub-agent."""

    def place():
        return RemoteWorkspace(host=os.environ["AGENT_SERVER"], working_dir=str(Path("remote").absolute()))

    with thunder.program(program_id="here"):
        first = chat(place=place(), program={"priority": 1})
    with first:
        first.run()
        with first.fork() as fork:
            fork.send_message("and now?")
            fork.run()
            told = facts(first, fork)
    with chat("delegate", place=place) as made:
        made.run()
        told += facts(made)
    return told


def in_docker():
    """Workspaces in containers: one that the program brings, one that was there before."""
    from openhands.workspace import DockerWorkspace

    def place():
        return DockerWorkspace(
            server_image=os.environ["IMAGE"],
            host=os.environ["AGENT_SERVER"],
            working_dir=str(Path("remote").absolute()),
            detach_logs=False,
        )

    made = conversation(agent(), workspace=place, visualizer=None)
    there = place()
    given = conversation(agent(), workspace=there, visualizer=None)
    told = [[str(one.id), one.workspace._container_id] for one in (made, given)]
    made.close()
    given.close()
    alive = there._container_id is not None
    there.cleanup()
    return [*told, alive]


def elsewhere():
    with chat(of=agent(os.environ["ELSEWHERE"])) as made:
        made.run()
        return facts(made)


def simple():
    with chat() as made:
        made.run()
        return facts(made)


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    print(f"\n{json.dumps(result)}")
