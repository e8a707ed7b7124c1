"""An engine on a real socket that plays a script and keeps every request it got, byte by byte.

Which turn of the script comes next is read off the conversation in the request, so any number of agents may
play the same script at once. Faults come first, one per request.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ...server.cli.harness import Background
from ...server.http.fake_engine import FakeEngine, Reply, Seen
from . import chat, completions, messages, responses
from .dialogue import Cuts, Fails, Fault, Hangs, Plays, Turn, says

MODEL = "m"
_FACES: dict[str, ModuleType] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
}


class Engine:
    """``requests`` are the calls since the test began, in order of arrival."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._fake = FakeEngine(blocks=100_000, models=(MODEL,))
        self._fake.answer = self._answer
        self._changed = threading.Condition()
        background.run(self._fake.start())
        self.reset()

    def reset(self) -> None:
        """As new: one polite answer for everything, nothing seen."""
        self._script: tuple[Turn, ...] = (says("Hello from the engine."),)
        self._pick: Callable[[Seen], tuple[Turn, ...]] | None = None
        self._faults: deque[Fault] = deque()
        self._refuses: Callable[[Seen], Fails | None] = lambda _: None
        self.strict = True
        self.pace = 0.0
        self._fake.seen.clear()

    def close(self) -> None:
        self._background.run(self._fake.stop())

    # --- the script -------------------------------------------------------------------------------------

    def plays(self, *turns: Turn) -> None:
        """A conversation's answers, in order; the last one repeats."""
        self._script, self._pick = turns, None

    def plays_by(self, pick: Callable[[Seen], tuple[Turn, ...]]) -> None:
        """Another script for every request: ``pick`` sees the request."""
        self._pick = pick

    def faults(self, *faults: Fault) -> None:
        """What the next requests get instead of the script's answer."""
        self._faults.extend(faults)

    def refuses(self, judge: Callable[[Seen], Fails | None]) -> None:
        """Requests that get this error for what they are."""
        self._refuses = judge

    # --- what it saw ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._fake.url

    @property
    def requests(self) -> list[Seen]:
        return list(self._fake.seen)

    def wait_for(self, condition: Callable[[list[Seen]], object], timeout: float = 20.0) -> list[Seen]:
        """The requests, once ``condition`` holds for them."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.requests), timeout):
                raise AssertionError(f"not within {timeout:g} s: {[r.target for r in self.requests]}")
        return self.requests

    # --- answering --------------------------------------------------------------------------------------

    async def _answer(self, seen: Seen, reply: Reply) -> None:
        with self._changed:
            self._changed.notify_all()
        try:
            await self._play(seen, reply)
        finally:
            with self._changed:
                self._changed.notify_all()

    async def _play(self, seen: Seen, reply: Reply) -> None:
        face = _FACES.get(seen.path)
        if face is None:
            await _refuse(reply, 404, f"no {seen.path} here")
            return
        body = seen.json
        unknown = sorted(set(body) - face.KNOWN)
        if self.strict and unknown:
            await _refuse(reply, 400, f"extra_forbidden: {', '.join(unknown)}")
            return
        fault: Fault | None = self._refuses(seen)
        if fault is None and self._faults:
            fault = self._faults.popleft()
        if isinstance(fault, Fails):
            await _refuse(reply, fault.status, fault.message, **fault.headers)
            return
        if isinstance(fault, Plays):
            await _replay(reply, fault)
            return
        index = face.turn_index(body)
        script = self._pick(seen) if self._pick else self._script
        turn = script[min(index, len(script) - 1)].numbered(index)
        if body.get("stream"):
            await self._stream(reply, face.pieces(body, turn), fault)
        elif isinstance(fault, Cuts):
            reply.die()
        else:
            if isinstance(fault, Hangs):
                await asyncio.Event().wait()
            await asyncio.sleep(self.pace)
            await reply.json(face.whole(body, turn))

    async def _stream(self, reply: Reply, pieces: Iterator[bytes], fault: Cuts | Hangs | None) -> None:
        await reply.stream_head()
        for sent, piece in enumerate(pieces):
            if fault is not None and sent == fault.after:
                if isinstance(fault, Cuts):
                    reply.die()
                    return
                await asyncio.Event().wait()
            await reply.chunk(piece)
            await asyncio.sleep(self.pace)
        await reply.end()


async def _replay(reply: Reply, recorded: Plays) -> None:
    if "event-stream" not in recorded.content_type:
        await reply.body(recorded.body, content_type=recorded.content_type)
        return
    await reply.stream_head(content_type=recorded.content_type)
    for start in range(0, len(recorded.body), recorded.size):
        await reply.chunk(recorded.body[start : start + recorded.size])
    await reply.end()


async def _refuse(reply: Reply, status: int, message: str, **headers: str) -> None:
    error: dict[str, Any] = {"message": message, "type": "scripted", "code": None, "param": None}
    await reply.body(
        json.dumps({"error": error}).encode(), status, content_type="application/json", **headers
    )


def ours(seen: Seen) -> dict[str, str]:
    """What a request carries of ours, or of a program: header names in lower case."""
    return {
        name.lower(): value
        for name, value in seen.headers
        if name.lower().startswith(("x-thunder", "x-session-id", "x-dynamo", "traceparent", "baggage"))
    }
