"""A conversation of the OpenHands SDK, scheduled as a program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_openhands.py MODEL
"""

import os
import sys
import tempfile

from openhands.sdk import LLM, Agent, Tool
from openhands.tools.terminal import TerminalTool

from thunder_integrations.openhands import conversation

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

llm = LLM(model=f"hosted_vllm/{MODEL}", base_url=f"{SERVER}/v1", api_key="none", usage_id="agent")
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])

with tempfile.TemporaryDirectory() as place, conversation(agent, workspace=place) as chat:
    chat.send_message("How long has this machine been up?")
    chat.run()
    print(chat.state.execution_status.value)
