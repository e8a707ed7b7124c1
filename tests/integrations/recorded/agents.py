"""What clients make of a real engine's answers: ``agents.py CLIENT``, given the requests in ``ASKED``."""

import json
import os
import sys

import thunder_sdk as thunder

ASKED = json.loads(os.environ["ASKED"])


def outcome(name, message):
    calls = [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
    return {"name": name, "tools": calls, "content": message.content or "", "reasoning": reasoning}


def by_openai():
    from openai import OpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    client = thunder.wrap_openai(OpenAI())
    for name, asked in ASKED:
        with thunder.program(program_id=f"openai-{name}"):
            answer = client.chat.completions.create(**asked)
            if asked.get("stream"):
                state, reasoning = ChatCompletionStreamState(), ""
                for chunk in answer:
                    state.handle_chunk(chunk)
                    for choice in chunk.choices:
                        reasoning += getattr(choice.delta, "reasoning", None) or ""
                message = state.current_completion_snapshot.choices[0].message
                yield {**outcome(name, message), "reasoning": reasoning}
            else:
                yield outcome(name, answer.choices[0].message)


def by_litellm():
    import litellm

    import thunder_integrations.litellm

    thunder_integrations.litellm.install()
    for name, asked in ASKED:
        options = {**asked, "model": "hosted_vllm/m", "api_base": os.environ["OPENAI_BASE_URL"]}
        with thunder.program(program_id=f"litellm-{name}"):
            answer = litellm.completion(**options)
            if asked.get("stream"):
                answer = litellm.stream_chunk_builder(list(answer))
            yield outcome(name, answer.choices[0].message)


if __name__ == "__main__":
    print(json.dumps(list(globals()[f"by_{sys.argv[1]}"]())))
