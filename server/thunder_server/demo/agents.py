"""An agent process: scripts replayed as any agent would be written, with the SDK and the ``openai`` client.

Run by the demo as ``python -m thunder_server.demo.agents``: says ``ready``, takes an assignment from standard
input, and tells what happens as records on standard output, one a line. The part that a reader may want to
copy is `Agents.replay`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

import thunder_sdk as thunder
from thunder_sdk import wire
from thunder_server.demo.engines import KEY_VARIABLE
from thunder_server.demo.plan import Script, Step
from thunder_server.demo.prompts import Conversation, Filler, Sizes
from thunder_server.demo.records import Acted, Called, Closed, Failed, Opened, Record, Sending

READY = b"ready\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one agent process is to do. ``salt`` keeps runs from sharing prefixes at engines that go on."""

    base_url: str
    model: str
    salt: str
    sizes: Sizes
    scripts: tuple[Script, ...]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> Assignment:
        value: dict[str, Any] = json.loads(line)
        scripts = tuple(Script.from_json(script) for script in value["scripts"])
        return cls(**value | {"scripts": scripts, "sizes": Sizes(**value["sizes"])})


class Agents:
    """The agents of one process."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._filler = Filler()
        # The key is for the engines, if they want one; the server in between does not.
        key = os.environ.get(KEY_VARIABLE, "none")
        self._client = thunder.wrap_openai(AsyncOpenAI(base_url=f"{assignment.base_url}/v1", api_key=key))

    async def run(self) -> None:
        async with self._client, asyncio.TaskGroup() as agents:
            for script in self._assignment.scripts:
                agents.create_task(self.replay(script))

    async def replay(self, script: Script) -> None:
        """One agent run: call, act, call, act … inside a program; sub-agents are programs inside it."""
        async with thunder.program(script.name, expected_context=script.largest_context) as program:
            opened = Opened(program=program.id, name=script.name, parent=program.parent_id, at=time.time())
            tell(opened)
            chat = Conversation(self._filler, self._assignment.sizes, f"{self._assignment.salt} {program.id}")
            chat.begin(self._system(script), script.system_tokens, script.steps[0].prompt_tokens)
            reusable = 0
            try:
                for step, following in zip(script.steps, [*script.steps[1:], None], strict=True):
                    answer, answer_tokens = await self._call(program, chat, step, reusable)
                    if following is not None:
                        await self._act(program, following)
                        reusable = chat.go_on(
                            answer, answer_tokens, following.kept_tokens, following.prompt_tokens
                        )
            except openai.OpenAIError as error:
                tell(Failed(program=program.id, at=time.time(), error=" ".join(str(error).split())[:300]))
        tell(Closed(program=program.id, at=time.time()))

    async def _act(self, program: thunder.Program, step: Step) -> None:
        started = time.time()
        with program.acting(step.tool, expected=step.gap_s):
            async with asyncio.TaskGroup() as work:
                work.create_task(asyncio.sleep(step.gap_s))
                for child in step.children:
                    work.create_task(self.replay(child))
        tell(Acted(program=program.id, tool=step.tool, started=started, ended=time.time()))

    async def _call(
        self, program: thunder.Program, chat: Conversation, step: Step, reusable: int
    ) -> tuple[str, int]:
        """One call; the text of the answer and its tokens."""
        sent = time.time()
        tell(Sending(program=program.id, at=sent, prompt_tokens=step.prompt_tokens))
        response = await self._client.chat.completions.with_raw_response.create(
            model=self._assignment.model,
            messages=chat.payload(),  # type: ignore[arg-type]
            max_tokens=step.output_tokens,
            temperature=0,
            # A recorded answer has the length it has; engines that know these say neither more nor less.
            extra_body={"ignore_eos": True, "min_tokens": step.output_tokens},
        )
        answered = time.time()
        completion: ChatCompletion = response.parse()
        usage = completion.usage
        assert usage is not None, "an answer that is no stream has usage"
        details = usage.prompt_tokens_details
        tell(
            Called(
                program=program.id,
                sent=sent,
                answered=answered,
                wait_s=float(response.headers.get(wire.WAIT_MS, 0)) / 1000,
                backend=response.headers.get(wire.BACKEND, "unknown"),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=details.cached_tokens if details is not None else None,
                reusable_tokens=reusable,
            )
        )
        chat.known(usage.prompt_tokens)
        return completion.choices[0].message.content or "", usage.completion_tokens

    def _system(self, script: Script) -> str:
        words = self._assignment.sizes.words(script.system_tokens)
        return self._filler.text(f"{self._assignment.salt} {script.family}", words)


def tell(record: Record) -> None:
    sys.stdout.write(record.to_line() + "\n")
    sys.stdout.flush()


def main() -> None:
    sys.stdout.write(READY.decode())
    sys.stdout.flush()
    if line := sys.stdin.readline():  # an end of file means that the demo has given up
        assignment = Assignment.from_line(line)
        thunder.init(base_url=assignment.base_url)
        asyncio.run(Agents(assignment).run())


if __name__ == "__main__":
    main()
