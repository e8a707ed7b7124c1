"""How many tokens a prompt will be: size by measurement.

The engine tells every prompt's exact size, only afterwards. An agent's next prompt is its last one and
something new, so only what is new is guessed: its characters times the tokens per character this program
has shown. A program without history takes the ratio that all programs have shown; that one moves by at most
a tenth per call, so that one strange request (base64, a language of its own) cannot poison it.
"""

from __future__ import annotations

from math import exp, log

from thunder_server.core.call import Call
from thunder_server.core.program import Program

START_RATIO = 1 / 4  # tokens per character of English text and code
GLOBAL_STEP = log(1.1)
PROGRAM_STEP = log(2.0)
PROGRAM_SPAN = log(4.0)  # a program's ratio stays within this of everyone's


class Sizer:
    """Guesses the tokens of prompts and learns from what engines report."""

    def __init__(self) -> None:
        self.tokens_per_char = START_RATIO

    def estimate(self, program: Program, prompt_chars: int) -> int:
        """Tokens of a prompt of this program that has ``prompt_chars`` characters."""
        size = program.size
        ratio = size.tokens_per_char or self.tokens_per_char
        grown = prompt_chars - size.prompt_chars
        if size.prompt_tokens and grown >= 0:
            # What the program's answer added is in the context, and among the new characters too.
            return max(program.context, size.prompt_tokens + round(grown * ratio))
        if prompt_chars:
            return max(1, round(prompt_chars * ratio))
        return program.context or program.expected_context_tokens or 0  # nothing to go by, or compressed

    def learn(self, program: Program, call: Call, prompt_tokens: int) -> None:
        """Take in the size that the engine gave for a finished call."""
        size = program.size
        chars = call.request.prompt_chars
        if prompt_tokens > 0 and chars > 0:
            everyones = log(self.tokens_per_char)
            seen = log(prompt_tokens / chars)
            self.tokens_per_char = exp(everyones + _clip(seen - everyones, GLOBAL_STEP))

            new_tokens, new_chars = prompt_tokens - size.prompt_tokens, chars - size.prompt_chars
            if size.prompt_tokens and new_tokens > 0 and new_chars > 0:
                seen = log(new_tokens / new_chars)  # the growth tells more than an image at the beginning
            own = log(size.tokens_per_char) if size.tokens_per_char else everyones
            own += _clip(seen - own, PROGRAM_STEP)
            size.tokens_per_char = exp(everyones + _clip(own - everyones, PROGRAM_SPAN))
        size.prompt_tokens = prompt_tokens
        size.prompt_chars = chars


def _clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))
