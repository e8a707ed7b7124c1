"""The block hashes of a session's prompts, without their text."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from thunder_server.simulation.workload import Session, Turn

_BLOCKS = 2**24  # more than any prompt has
_PIECE = 64  # blocks; of about the size in which long messages are hashed


class Prompt(NamedTuple):
    """Names of the full blocks of a turn's prompt and output, how many of the prompt's tokens an endless
    cache would hold from this session's turns before, and in how many blocks each of the prompt's messages
    ends."""

    blocks: list[int]
    known_tokens: int
    messages: list[int]


class Prompts:
    """Names the blocks that the prompts and outputs of one session consist of.

    Equal names mean equal content from the first token on: of a family's sessions the system prompt's
    blocks, of one session's turns what they share. ``systems`` and ``versions`` belong to everybody whose
    blocks may meet in a cache: ``versions`` hands out numbers that no other content has.
    """

    def __init__(
        self, session: Session, block_size: int, systems: dict[str, int], versions: count[int]
    ) -> None:
        self._block = block_size
        self._versions = versions
        if session.model not in systems:
            systems[session.model] = next(versions)
        self._fixed = session.system_tokens // block_size
        self._names = _names(systems[session.model], 0, self._fixed)
        self._version = next(versions)
        self._messages: list[int] = []
        self._end_message(self._fixed)
        self._sent = 0  # tokens of the last prompt
        self._answered = 0  # and of its output

    def next(self, turn: Turn) -> Prompt:
        """The blocks of this turn."""
        block = self._block
        # Recordings tell what prompts share, in whole blocks; that the answer comes back in the next prompt
        # goes without saying wherever all of the last prompt does.
        whole = turn.shared_tokens // block >= self._sent // block
        grown = turn.prompt_tokens >= self._sent + self._answered
        kept = self._sent + self._answered if self._sent and whole and grown else turn.shared_tokens
        keep = max(self._fixed, kept // block)
        if keep < len(self._names):
            del self._names[keep:]
            while self._messages and self._messages[-1] > keep:
                self._messages.pop()
            self._version = next(self._versions)
        if self._answered:
            self._end_message(min(keep, (self._sent + self._answered) // block))
        self._end_message(turn.prompt_tokens // block)
        total = (turn.prompt_tokens + turn.output_tokens) // block
        self._names += _names(self._version, len(self._names), total)
        self._sent, self._answered = turn.prompt_tokens, turn.output_tokens
        known = min(kept, turn.prompt_tokens - 1) // block * block
        return Prompt(self._names[:total], known, self._messages.copy())

    def _end_message(self, end: int) -> None:
        """A message ends here, in blocks; long ones are hashed in several pieces."""
        last = self._messages[-1] if self._messages else 0
        self._messages += range(last + _PIECE, end, _PIECE)
        if end > last:
            self._messages.append(end)


def _names(version: int, start: int, end: int) -> list[int]:
    return list(range(version * _BLOCKS + start, version * _BLOCKS + end))
