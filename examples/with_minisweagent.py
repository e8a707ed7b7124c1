"""A mini-swe-agent, its run scheduled as a program.

thunder serve --backend http://127.0.0.1:8000 &
MSWEA_COST_TRACKING=ignore_errors python examples/with_minisweagent.py MODEL
"""

import os
import sys

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from thunder_integrations import minisweagent

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

model = LitellmModel(model_name=f"hosted_vllm/{MODEL}", model_kwargs={"api_base": f"{SERVER}/v1"})
agent = DefaultAgent(
    model,
    LocalEnvironment(),
    system_template="Solve the task with the bash tool. To submit, run: "
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer.txt",
    instance_template="{{task}}",
    step_limit=8,
)

result = minisweagent.instrument(agent, name="uptime").run("How long has this machine been up?")
print(result["exit_status"], result["submission"])
