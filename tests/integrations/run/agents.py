"""Agents that know nothing of us, set up by their environment alone: ``agents.py SCENARIO``."""

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import AsyncOpenAI, OpenAI

ASKS = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "hello"}]}


def conversation():
    """Two turns."""
    client, messages, texts = OpenAI(), list(ASKS["messages"]), []
    for _ in range(2):
        answer = client.chat.completions.create(**{**ASKS, "messages": messages})
        texts.append(answer.choices[0].message.content)
        messages += [{"role": "assistant", "content": texts[-1]}, {"role": "user", "content": "and now?"}]
    return texts


def every_way():
    """A stream, an asynchronous one, and calls from raw threads."""
    client = OpenAI()
    list(client.chat.completions.create(**ASKS, stream=True))

    async def later():
        async with AsyncOpenAI() as client:
            return [_ async for _ in await client.chat.completions.create(**ASKS, stream=True)]

    asyncio.run(later())
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: client.chat.completions.create(**ASKS), range(3)))


def fails():
    """One call, then an exception."""
    conversation()
    raise LookupError


def litellm_agent():
    """LiteLLM, set up by nothing but the environment."""
    import litellm

    options = {"messages": ASKS["messages"], "api_base": os.environ["OPENAI_BASE_URL"]}
    for model in ("openai/m", "hosted_vllm/m"):
        litellm.completion(model=model, **options)


def with_children():
    """It starts another agent as a program of its own."""
    command = [*json.loads(os.environ["THUNDER"]), "run", "--id", "run-child", "--", sys.executable]
    conversation()
    os.spawnv(os.P_WAIT, command[0], [*command, __file__, "conversation"])


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
