"""A crew of CrewAI, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_crewai.py MODEL
"""

import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from thunder_integrations import crewai as thunder_crewai

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

thunder_crewai.install(expected={"uptime": 0.1})
llm = LLM(
    model=MODEL,
    custom_openai=True,
    base_url=f"{SERVER}/v1",
    api_key="-",
    interceptor=thunder_crewai.Interceptor(),
)


@tool("uptime")
def uptime() -> str:
    """How long this machine has been up."""
    return os.popen("uptime").read()  # noqa: S605, S607


clerk = Agent(role="clerk", goal="know the machine", backstory="long there", tools=[uptime], llm=llm)
task = Task(description="How long has this machine been up?", expected_output="one sentence", agent=clerk)
print(Crew(name="uptime", agents=[clerk], tasks=[task]).kickoff())
