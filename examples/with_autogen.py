"""An agent of AutoGen, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_autogen.py MODEL
"""

import asyncio
import os
import sys
import time

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient

import thunder_sdk as thunder
from thunder_integrations import autogen as thunder_autogen

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]


async def uptime() -> str:
    """How long this machine has been up."""
    return f"{time.clock_gettime(time.CLOCK_BOOTTIME):.0f} s"


async def main() -> None:
    client = OpenAIChatCompletionClient(
        model=MODEL,
        base_url=f"{SERVER}/v1",
        api_key="-",
        model_info={
            "family": ModelFamily.UNKNOWN,
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
        },
        http_client=thunder.async_http_client(),
    )
    agent = AssistantAgent("uptime", client, tools=[uptime], reflect_on_tool_use=True)
    result = await thunder_autogen.run(
        agent, task="How long has this machine been up?", expected={"uptime": 0.1}
    )
    print(result.messages[-1].to_text())


asyncio.run(main())
