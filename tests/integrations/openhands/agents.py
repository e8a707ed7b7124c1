"""What the tests run in the lane: ``agents.py NAME``, one function each."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from openhands.sdk import LLM, Agent, Tool
from openhands.tools.terminal import TerminalTool

import thunder_sdk as thunder
from thunder_integrations.openhands import conversation

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", force=True)


def told(**facts: object) -> None:
    """The last line is what the test reads."""
    print(json.dumps(facts))


def llm(**options: object) -> LLM:
    return LLM(
        model="openai/" + os.environ["MODEL"],
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key="sk-test",
        num_retries=1,
        usage_id="agent",
        **options,
    )


def agent() -> Agent:
    return Agent(llm=llm(), tools=[Tool(name=TerminalTool.name)])


def local() -> None:
    with conversation(
        agent(), workspace="project", visualizer=None, program={"group": "eval-1", "priority": 3}
    ) as chat:
        chat.send_message("list the files")
        chat.run()
        fork = chat.fork()
        fork.send_message("again")
        asyncio.run(fork.arun())
        fork.close()
        told(id=str(chat.id), fork=str(fork.id), status=chat.state.execution_status.value)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
