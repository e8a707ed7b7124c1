"""From what a client asks to what the engine is to run and will say.

The whole answer is known when the request comes in; the engine only decides when each token of it is due.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from thunder_server.emulate import tokens
from thunder_server.emulate.requests import ApiError, GeneratingBody
from thunder_server.simulation.engine import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What will have been said to one prompt when the engine is through with ``request``."""

    request: Request
    text: str
    finish_reason: str  # "stop" or "length"
    stop: str | None  # the text of the client's that ended it; not part of ``text``
    lead: int  # characters before the first generated token; they complete the prompt's last one

    def text_until(self, generated: int) -> str:
        """The text that the first ``generated`` output tokens have brought."""
        return self.text[: self.lead + generated * tokens.TOKEN_BYTES] if generated else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a request, in tokens."""

    max_model_len: int
    block_size: int


def plan(body: GeneratingBody, limits: Limits) -> Sequence[Answer]:
    """The answers to a body's prompts; an ``ApiError`` where one of them cannot be."""
    return [_answer(prompt, body, limits) for prompt in body.encode_prompts()]


def _answer(prompt: bytes, body: GeneratingBody, limits: Limits) -> Answer:
    lead = -len(prompt) % tokens.TOKEN_BYTES
    prompt_tokens = tokens.count(prompt)
    most = _room(prompt_tokens, body, limits)
    voice = tokens.speak(prompt, seed=body.seed)
    wanted = most if body.ignore_eos else max(tokens.natural_length(voice), body.min_tokens)
    length, finish_reason = (wanted, "stop") if wanted < most else (most, "length")
    said = tokens.say(voice, length, lead=lead)
    end, stop = _find_stop(said, body, lead)
    if stop is not None:
        length, finish_reason = max(1, -(-(end - lead) // tokens.TOKEN_BYTES)), "stop"
    generated = said[: lead + length * tokens.TOKEN_BYTES]
    return Answer(
        request=Request(
            id=uuid.uuid4().hex,
            prompt_tokens=prompt_tokens,
            output_tokens=length,
            block_hashes=tokens.block_hashes(prompt + generated.encode(), limits.block_size, body.cache_salt),
        ),
        text=said[: end - len(stop)] if stop is not None else said,
        finish_reason=finish_reason,
        stop=stop,
        lead=lead,
    )


def _room(prompt_tokens: int, body: GeneratingBody, limits: Limits) -> int:
    """The most output tokens there can be; an ``ApiError`` where the client's figures do not fit."""
    if not prompt_tokens:
        raise ApiError(400, "The prompt is empty.", param=body.prompt_field)
    room = limits.max_model_len - prompt_tokens
    if room >= max(1, body.most_tokens or 1, body.min_tokens):
        return body.most_tokens or room
    asked = f" and asks for {body.most_tokens} output tokens" if body.most_tokens else ""
    raise ApiError(
        400,
        f"This model's maximum context length is {limits.max_model_len} tokens, but the request has "
        f"{prompt_tokens} input tokens{asked}. Shorten one of them.",
        param=body.prompt_field,
    )


def _find_stop(said: str, body: GeneratingBody, lead: int) -> tuple[int, str | None]:
    """The stop text that is complete first, once there are ``min_tokens``, and where it ends."""
    earliest = lead + body.min_tokens * tokens.TOKEN_BYTES
    found = [
        (at + len(stop), stop)
        for stop in body.stops
        if stop and (at := said.find(stop, max(0, earliest - len(stop) + 1))) >= 0
    ]
    return min(found, default=(len(said), None))
