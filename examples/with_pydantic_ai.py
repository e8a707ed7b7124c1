"""An agent of pydantic-ai, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_pydantic_ai.py MODEL
"""

import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from thunder_integrations.pydantic_ai import Thunder

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{SERVER}/v1", api_key="-"))
agent = Agent(model, name="uptime", capabilities=[Thunder()])


@agent.tool_plain(metadata={"expected_s": 0.1})
def uptime() -> str:
    """How long this machine has been up."""
    return os.popen("uptime").read()  # noqa: S605, S607


print(agent.run_sync("How long has this machine been up?").output)
