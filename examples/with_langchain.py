"""An agent of LangChain, which is a LangGraph, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_langchain.py MODEL
"""

import os
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from thunder_integrations import langchain as thunder_langchain

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

thunder_langchain.install(expected={"uptime": 0.1})
model = thunder_langchain.wrap(ChatOpenAI(model=MODEL, base_url=f"{SERVER}/v1", api_key="-"))


@tool
def uptime() -> str:
    """How long this machine has been up."""
    return os.popen("uptime").read()  # noqa: S605, S607


agent = create_agent(model, [uptime], name="uptime")
state = agent.invoke({"messages": [("user", "How long has this machine been up?")]})
print(state["messages"][-1].text)
