"""SWE-agent on one problem, scheduled as a program. SWE-agent 1.1 is installed from its source.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_sweagent.py MODEL [docker|local]     # local: in this machine's own /root
"""

import os
import sys

from sweagent.run.run_single import RunSingle, RunSingleConfig

from thunder_integrations.sweagent import RunHook

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL, DEPLOYMENT = [*sys.argv[1:], "docker"][:2]

config = RunSingleConfig(
    agent={
        "model": {
            "name": f"hosted_vllm/{MODEL}",
            "api_base": f"{SERVER}/v1",
            "api_key": "none",
            "per_instance_cost_limit": 0,
            "total_cost_limit": 0,
            "max_input_tokens": 0,
        },
        "templates": {
            "system_template": "Solve the task with the bash tool. To submit, put a patch into "
            "/root/model.patch, then run: echo '<<SWE_AGENT_SUBMISSION>>'",
            "instance_template": "{{problem_statement}}",
        },
        "tools": {"enable_bash_tool": True, "parse_function": {"type": "function_calling"}},
    },
    env={
        "deployment": {"type": "docker", "image": "python:3.11", "python_standalone_dir": "/root"}
        if DEPLOYMENT == "docker"
        else {"type": DEPLOYMENT}
    },
    problem_statement={"text": "How long has this machine been up?", "id": "uptime"},
)

with RunHook(group="examples") as hook:
    run = RunSingle.from_config(config)
    run.add_hook(hook)
    run.run()
