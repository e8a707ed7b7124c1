"""An agent on LiteLLM, scheduled as one program.

thunder serve --backend http://127.0.0.1:8000 &
python examples/with_litellm.py MODEL
"""

import os
import sys

import litellm

import thunder_integrations.litellm
import thunder_sdk as thunder

SERVER = os.environ.setdefault("THUNDER_BASE_URL", "http://127.0.0.1:8300")
MODEL = sys.argv[1]

thunder_integrations.litellm.install()


def run(command: str) -> str:
    """A tool."""
    return os.popen(command).read()  # noqa: S605


with thunder.program("uptime") as p:
    messages = [{"role": "user", "content": "How long has this machine been up?"}]
    for command in ("uptime", "date"):
        with p.acting("shell", expected=1):
            messages.append({"role": "user", "content": f"$ {command}\n{run(command)}"})
        answer = litellm.completion(
            model=f"hosted_vllm/{MODEL}", api_base=f"{SERVER}/v1", messages=messages, max_tokens=100
        )
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})

print(messages[-1]["content"])
