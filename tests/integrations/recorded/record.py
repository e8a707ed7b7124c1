"""Records conversations with a real vLLM: ``python -m tests.integrations.recorded.record URL``.

The engine was vLLM 0.32.0 on a CPU with the model of ``benchmarks/tiny_model.py``, whose tokenizer got
``<think>`` and ``</think>`` as tokens 3 and 4 (added, not special)::

    vllm serve DIR --served-model-name tiny --load-format dummy --dtype bfloat16 --enforce-eager \\
        --block-size 32 --max-model-len 4096 --reasoning-parser deepseek_r1 \\
        --enable-auto-tool-choice --tool-call-parser hermes

Its weights are random, so it says noise; a bias towards ``</think>`` ends its thoughts, and strict tools make
it call some. Seeds were chosen for what they lead to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import vcr

CASSETTES = Path(__file__).with_name("cassettes")
END_OF_THOUGHT = "4"


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


TOOLS = [
    _tool("bash", command={"type": "string", "enum": ["ls", "pytest -q", "git diff"]}),
    _tool(
        "read_file",
        path={"type": "string", "enum": ["README.md", "setup.py"]},
        lines={"type": "integer", "enum": [10, 50, 200]},
    ),
]
ASKS = {"model": "tiny", "messages": [{"role": "user", "content": "Look around and tell."}]}
_CALLS = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 250, "logit_bias": {END_OF_THOUGHT: 9}}
SCENES: dict[str, dict[str, Any]] = {
    "tool-call": {**_CALLS, "seed": 0},
    "parallel-tool-calls": {**_CALLS, "seed": 1},
    "reasoning": {"seed": 2, "max_tokens": 60, "logit_bias": {END_OF_THOUGHT: 4}},
    "long": {"seed": 3, "max_tokens": 300, "logit_bias": {END_OF_THOUGHT: 9}},
}


def record(url: str) -> None:
    """Every scene whole and streamed, into a cassette of its own. Nothing of this machine is kept."""

    def anonymous(request: Any) -> Any:
        request.uri = "http://engine/v1/chat/completions"
        request.headers = {"content-type": "application/json"}
        return request

    def timeless(response: dict[str, Any]) -> dict[str, Any]:
        kept = {name.lower(): value for name, value in response["headers"].items()}
        response["headers"] = {"content-type": kept["content-type"]}
        return response

    recorder = vcr.VCR(before_record_request=anonymous, before_record_response=timeless, record_mode="all")
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        for name, options in SCENES.items():
            for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
                path = CASSETTES / f"{name}{'-stream' if stream else ''}.yaml"
                path.unlink(missing_ok=True)
                asks = [{"role": "user", "content": "Look around and tell."}]
                with recorder.use_cassette(str(path)):
                    client.post(
                        "/v1/chat/completions", json={"model": "tiny", "messages": asks} | options | stream
                    )


if __name__ == "__main__":
    record(sys.argv[1])
