"""From what a client asks to what the engine is to run and will say.

The whole answer is known when the request comes in; the engine only decides when each token of it is due.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from thunder_server.emulate import tokens
from thunder_server.emulate.requests import ApiError, ChatBody, CompletionBody, Sampling
from thunder_server.simulation.engine import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What will have been said to one prompt when the engine is through with ``request``."""

    request: Request
    text: str
    finish_reason: str
    lead: int  # characters before the first generated token; they complete the prompt's last one

    def text_until(self, generated: int) -> str:
        """The text that the first ``generated`` output tokens have brought."""
        return self.text[: self.lead + generated * tokens.TOKEN_BYTES] if generated else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a request, in tokens."""

    max_model_len: int
    block_size: int


def to_chat(body: ChatBody, limits: Limits) -> Answer:
    """The answer to a chat."""
    messages = [message.model_dump() for message in body.messages]
    return _answer(tokens.encode_chat(messages, body.tools), body, limits, param="messages")


def to_completion(prompt: str | list[int], body: CompletionBody, limits: Limits) -> Answer:
    """The answer to one of the prompts of a completion call."""
    if isinstance(prompt, str):
        # Left unfilled: the answer goes on inside the last token, so that prompt + answer, sent again as one
        # text, are the same tokens.
        return _answer(prompt.encode(errors="replace"), body, limits, param="prompt")
    try:
        return _answer(tokens.from_ids(prompt), body, limits, param="prompt")
    except ValueError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from None


def _answer(prompt: bytes, body: Sampling, limits: Limits, *, param: str) -> Answer:
    lead = -len(prompt) % tokens.TOKEN_BYTES
    prompt_tokens = tokens.count(prompt)
    most = _room(prompt_tokens, body, limits, param=param)
    voice = tokens.speak(prompt, seed=body.seed)
    wanted = most if body.ignore_eos else max(tokens.natural_length(voice), body.min_tokens)
    length, finish_reason = (wanted, "stop") if wanted < most else (most, "length")
    text = said = tokens.say(voice, length, lead=lead)
    if (cut := _find_stop(said, body, lead)) is not None:
        length, text, finish_reason = cut[0], said[: cut[1]], "stop"
        said = said[: lead + length * tokens.TOKEN_BYTES]
    return Answer(
        request=Request(
            id=uuid.uuid4().hex,
            prompt_tokens=prompt_tokens,
            output_tokens=length,
            block_hashes=tokens.block_hashes(prompt + said.encode(), limits.block_size, body.cache_salt),
        ),
        text=text,
        finish_reason=finish_reason,
        lead=lead,
    )


def _room(prompt_tokens: int, body: Sampling, limits: Limits, *, param: str) -> int:
    """The most output tokens there can be; an ``ApiError`` where the client's figures do not fit."""
    if not prompt_tokens:
        raise ApiError(400, "The prompt is empty.", param=param)
    room = limits.max_model_len - prompt_tokens
    if room >= max(1, body.most_tokens or 1, body.min_tokens):
        return body.most_tokens or room
    asked = f" and asks for {body.most_tokens} output tokens" if body.most_tokens else ""
    raise ApiError(
        400,
        f"This model's maximum context length is {limits.max_model_len} tokens, but the request has "
        f"{prompt_tokens} input tokens{asked}. Shorten one of them.",
        param=param,
    )


def _find_stop(said: str, body: Sampling, lead: int) -> tuple[int, int] | None:
    """Where the first stop string is: output tokens until it is complete, characters before it."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    earliest = lead + body.min_tokens * tokens.TOKEN_BYTES
    found = [
        (at + len(stop), at)
        for stop in stops
        if stop and (at := said.find(stop, max(0, earliest - len(stop) + 1))) >= 0
    ]
    if not found:
        return None
    end, at = min(found)
    return max(1, -(-(end - lead) // tokens.TOKEN_BYTES)), at
