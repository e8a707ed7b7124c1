"""An agent that knows nothing of us: a plain openai client, set up by the environment."""

import json
import os

from openai import OpenAI

client = OpenAI()
messages = [{"role": "user", "content": "hello"}]
texts = []
for _ in range(2):
    answer = client.chat.completions.create(model=os.environ["MODEL"], messages=messages)
    texts.append(answer.choices[0].message.content)
    messages += [{"role": "assistant", "content": texts[-1]}, {"role": "user", "content": "and now?"}]
print(json.dumps(texts))
