"""Agents that do the work: call, act, call, act, as any agent would that is written with the openai client.

One process holds all of them; they wait for engines and tools and need next to nothing themselves.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
from openai import AsyncOpenAI

import thunder_sdk as thunder
from benchmarks.engines.targets import Face, Target, Telling
from thunder_sdk import wire
from thunder_server.demo.prompts import Conversation, Filler, Sizes
from thunder_server.demo.records import Acted, Called, Closed, Failed, Opened, Record
from thunder_server.simulation.replay import GUESS_SIGMA
from thunder_server.simulation.workload import Session, Turn

TOOL = "bash"


@dataclass(slots=True, kw_only=True)
class Crew:
    """The agents of one run at one target. ``salt`` keeps runs from sharing prefixes."""

    target: Target
    face: Face
    model: str
    sizes: Sizes
    engines: Sequence[str]  # names of the engines, for who talks to one directly
    salt: str
    records: list[Record] = field(default_factory=list)
    _filler: Filler = field(default_factory=Filler)
    _clients: dict[str, AsyncOpenAI] = field(default_factory=dict)

    async def work(self, sessions: Sequence[Session], at_a_time: int) -> None:
        """Run all programs, ``at_a_time`` of them at once, each of the others as soon as one has ended."""
        explicit = self.target.telling is Telling.EXPLICIT
        if explicit:
            thunder.init(base_url=self.face.urls[0])
        seats = asyncio.Semaphore(self.target.at_a_time or at_a_time)
        try:
            async with asyncio.TaskGroup() as programs:
                for number, session in enumerate(sessions):
                    programs.create_task(self._seated(seats, number, session))
        finally:
            for client in self._clients.values():
                await client.close()
            if explicit:
                await asyncio.to_thread(thunder.shutdown)

    async def _seated(self, seats: asyncio.Semaphore, number: int, session: Session) -> None:
        async with seats:
            await self._program(number, session)

    async def _program(self, number: int, session: Session) -> None:
        url = self.face.url(number)
        if self.target.telling is Telling.EXPLICIT:
            async with thunder.program(session.id) as program:
                await self._replay(session, program.id, url, program)
        else:
            program_id = f"{self.salt}-{session.id}"
            await self._replay(session, program_id, url, None)
            if self.target.telling is Telling.BODY:
                await _release(url, program_id)

    async def _replay(
        self, session: Session, program_id: str, url: str, program: thunder.Program | None
    ) -> None:
        self.records.append(Opened(program=program_id, name=session.id, parent=None, at=time.time()))
        # As in the simulator: what clients expect of a tool is roughly what it will take.
        guesses = random.Random(session.id)
        # Programs are to share so many tokens and no more: the system prompt with its salt (a token a
        # character for most tokenizers) and the frames of two messages. What differs leads the second one.
        chat = Conversation(self._filler, self.sizes, f"{session.id} {self.salt}")
        frames = len(self.salt) + 2 * self.sizes.per_message
        words = self.sizes.words(max(8.0, session.system_tokens - frames))
        system = f"{self.salt} {self._filler.text(session.model, words)}"
        chat.begin(system, session.system_tokens, session.turns[0].prompt_tokens)
        answer, told, reusable = "", 0, 0
        try:
            for number, turn in enumerate(session.turns):
                if number:
                    await self._act(program_id, turn, program, guesses)
                    reusable = chat.go_on(answer, told, turn.shared_tokens, turn.prompt_tokens)
                answer, told = await self._call(program_id, url, chat, turn, reusable)
        except openai.OpenAIError as error:
            message = " ".join(str(error).split())[:300]
            self.records.append(Failed(program=program_id, at=time.time(), error=message))
        self.records.append(Closed(program=program_id, at=time.time()))

    async def _act(
        self, program_id: str, turn: Turn, program: thunder.Program | None, guesses: random.Random
    ) -> None:
        expected = turn.gap_s * guesses.lognormvariate(0.0, GUESS_SIGMA)
        telling: AbstractContextManager[Any] = (
            nullcontext() if program is None else program.acting(TOOL, expected=expected)
        )
        started = time.time()
        with telling:
            await asyncio.sleep(turn.gap_s)
        self.records.append(Acted(program=program_id, tool=TOOL, started=started, ended=time.time()))

    async def _call(
        self, program_id: str, url: str, chat: Conversation, turn: Turn, reusable: int
    ) -> tuple[str, int]:
        """One call; the text of the answer, and its tokens."""
        extra: dict[str, Any] = {"ignore_eos": True, "min_tokens": turn.output_tokens}
        headers = {}
        if self.target.telling is Telling.HEADER:
            headers["X-Session-ID"] = program_id
        if self.target.telling is Telling.BODY:
            extra["program_id"] = program_id
        sent = time.time()
        response = await self._client(url).chat.completions.with_raw_response.create(
            model=self.model,
            messages=chat.payload(),  # type: ignore[arg-type]
            max_tokens=turn.output_tokens,
            temperature=0,
            extra_body=extra,
            extra_headers=headers,
        )
        answered = time.time()
        completion = response.parse()
        usage = completion.usage
        assert usage is not None, "an answer that is no stream has usage"
        details = usage.prompt_tokens_details
        self.records.append(
            Called(
                program=program_id,
                sent=sent,
                answered=answered,
                wait_s=float(response.headers.get(wire.WAIT_MS, 0)) / 1000,
                backend=response.headers.get(wire.BACKEND) or self._engine(url),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=details.cached_tokens if details is not None else None,
                reusable_tokens=reusable,
            )
        )
        chat.known(usage.prompt_tokens)
        return completion.choices[0].message.content or "", usage.completion_tokens

    def _engine(self, url: str) -> str:
        name = url.removeprefix("http://")
        return name if name in self.engines else "unknown"

    def _client(self, url: str) -> AsyncOpenAI:
        if url not in self._clients:
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=3600, max_retries=2)
            self._clients[url] = (
                thunder.wrap_openai(client) if self.target.telling is Telling.EXPLICIT else client
            )
        return self._clients[url]


async def _release(url: str, program_id: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(f"{url}/programs/release", json={"program_id": program_id})
