"""An agent of smolagents, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_smolagents.py MODEL
"""

import os
import sys

from smolagents import OpenAIModel, tool

from thunder_integrations.smolagents import CodeAgent

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]


@tool
def uptime() -> str:
    """How long this machine has been up."""
    return os.popen("uptime").read()  # noqa: S605, S607


model = OpenAIModel(MODEL, api_base=f"{SERVER}/v1", api_key="-")
agent = CodeAgent([uptime], model, name="clerk", max_steps=3, expected={"python_interpreter": 0.1})
print(agent.run("How long has this machine been up?"))
