"""An agent of the OpenAI Agents SDK, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_openai_agents.py MODEL
"""

import asyncio
import os
import sys

from agents import Agent, function_tool, set_default_openai_api, set_tracing_disabled
from openai import AsyncOpenAI

from thunder_integrations.openai_agents import Hooks, Runner, install

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

set_tracing_disabled(True)  # it would go to OpenAI
set_default_openai_api("chat_completions")
install(AsyncOpenAI(base_url=f"{SERVER}/v1", api_key="-"))


@function_tool
def uptime() -> str:
    """How long this machine has been up."""
    return os.popen("uptime").read()  # noqa: S605, S607


async def main() -> None:
    agent = Agent(name="uptime", instructions="Answer briefly.", model=MODEL, tools=[uptime])
    result = await Runner.run(
        agent, "How long has this machine been up?", hooks=Hooks(expected={"uptime": 0.1})
    )
    print(result.final_output)


asyncio.run(main())
