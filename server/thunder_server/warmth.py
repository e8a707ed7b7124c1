"""Keeping contexts warm: latest prompts of programs, sent again when the core wants an engine to use them.

An engine drops the KV that was used longest ago, whoever it belongs to. A prompt that it still holds costs it
one step to use: so it is asked for a single token, which nobody reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import aiohttp
from multidict import CIMultiDict

from thunder_server.backends.poller import Poller
from thunder_server.core.decisions import Decision, Terminate, Touch
from thunder_server.request_body import Body
from thunder_server.upstream import UpstreamError, next_chunk, send

log = logging.getLogger(__name__)

_LIMIT: Final = {"/v1/responses": "max_output_tokens"}
"""How many tokens an API's answer may have; ``max_tokens`` for those that are not here."""
_OF_ANSWERS: Final = frozenset(
    {
        "background",
        "best_of",
        "echo",
        "logprobs",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "prompt_logprobs",
        "response_format",
        "store",
        "stream",
        "stream_options",
        "structured_outputs",
        "top_logprobs",
    }
)
"""Members that say what an answer is to be like, and leave the prompt as it is."""
_SILENCE_S: Final = 60.0


class Latest(NamedTuple):
    """A program's latest prompt: where it went, and what with."""

    path: str
    target: str
    headers: CIMultiDict[str]
    body: bytes


class Warmth:
    """Holds the latest prompt of every live program, and sends it again on `Touch`."""

    def __init__(self, http: Callable[[], aiohttp.ClientSession], backends: Mapping[str, Poller]) -> None:
        self.failed = 0
        self._http = http
        self._backends = backends
        self._latest: dict[str, Latest] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def remember(
        self, program_id: str, path: str, target: str, headers: CIMultiDict[str], body: Body
    ) -> None:
        """This is sent for the program now. One that is compressed is kept as it reads."""
        if not body.encoded:
            self._latest[program_id] = Latest(path, target, headers, body.forward)
        elif body.fields:
            plain = headers.copy()
            plain.popall("Content-Encoding", None)
            text = json.dumps(dict(body.fields)).encode()
            self._latest[program_id] = Latest(path, target, plain, text)
        else:
            self._latest.pop(program_id, None)

    @property
    def held_bytes(self) -> int:
        """Size of the prompts that are held."""
        return sum(len(latest.body) for latest in self._latest.values())

    def decided(self, decision: Decision) -> None:
        """Do what a decision means for prompts."""
        match decision:
            case Touch(program_id=program_id, backend_id=backend_id):
                latest, backend = self._latest.get(program_id), self._backends.get(backend_id)
                if latest is not None and backend is not None and program_id not in self._under_way:
                    self._under_way[program_id] = asyncio.create_task(
                        self._touch(program_id, latest, backend)
                    )
            case Terminate(program_id=program_id):
                self._latest.pop(program_id, None)
            case _:
                pass

    async def stop(self) -> None:
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _touch(self, program_id: str, latest: Latest, backend: Poller) -> None:
        try:
            answer = await send(
                self._http(),
                backend.spec,
                "POST",
                latest.target,
                latest.headers,
                one_token(latest.path, latest.body),
                silence_s=_SILENCE_S,
            )
            try:
                while await next_chunk(answer):
                    pass
                if answer.status >= 400:
                    self._fail(program_id, f"status {answer.status}")
            finally:
                answer.close()
        except UpstreamError as failure:
            self._fail(program_id, str(failure))
        finally:
            del self._under_way[program_id]

    def _fail(self, program_id: str, why: str) -> None:
        """Nobody waits for it: the program's next call computes what was dropped."""
        self.failed += 1
        log.debug("keeping the context of program %s warm failed: %s", program_id, why)


def one_token(path: str, body: bytes) -> bytes:
    """The same prompt, for an answer of one token.

    >>> one_token("/v1/chat/completions", b'{"messages": [], "stream": true, "max_completion_tokens": 100}')
    b'{"messages": [], "max_tokens": 1}'
    """
    members = {name: value for name, value in json.loads(body).items() if name not in _OF_ANSWERS}
    members[_LIMIT.get(path, "max_tokens")] = 1
    return json.dumps(members).encode()
