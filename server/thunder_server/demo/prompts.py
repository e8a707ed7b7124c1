"""Prompts of a wanted size, for any engine and any tokenizer.

Text is common three-letter words, one token each for most tokenizers; how many tokens a word really is, one
call tells (`Sizes`). What makes texts different is how they begin: an engine finds a prefix in its cache only
up to the first difference, so that a tag in front is enough, and the rest may be cut from one long filler.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_WORDS = "the and for not but are has was can did new old one two few all any our its now yes out off per"
_FILLER_WORDS = 1 << 18


@dataclass(frozen=True, slots=True)
class Sizes:
    """What text costs at an engine: tokens per word, and tokens of the frame around each message."""

    per_word: float = 1.0
    per_message: float = 6.0

    def words(self, tokens: float) -> int:
        """How many words make so many tokens; at least one."""
        return max(1, round(tokens / self.per_word))

    @classmethod
    def measured(cls, *, words: tuple[int, int], tokens: tuple[int, int]) -> Sizes:
        """From two prompts of one message each: so many words were so many tokens.

        >>> Sizes.measured(words=(8, 508), tokens=(26, 1026))
        Sizes(per_word=2.0, per_message=10.0)
        """
        per_word = max(0.1, (tokens[1] - tokens[0]) / (words[1] - words[0]))
        return cls(per_word=per_word, per_message=max(0.0, tokens[0] - words[0] * per_word))


class Filler:
    """One long text, the same in every process, to cut pieces from."""

    def __init__(self) -> None:
        rng = random.Random(0)  # noqa: S311
        words = rng.choices(_WORDS.split(), k=_FILLER_WORDS)
        self._text = " ".join(words)  # every word has three letters: the n-th one begins at 4 n

    def text(self, tag: str, words: int) -> str:
        """``tag`` and then so many words."""
        pieces = [tag]
        while words > 0:
            taken = min(words, _FILLER_WORDS)
            pieces.append(self._text[: 4 * taken - 1])
            words -= taken
        return " ".join(pieces)


@dataclass(slots=True)
class Message:
    role: str
    content: str
    tokens: float  # as far as known


@dataclass(slots=True)
class Conversation:
    """The messages of one agent, kept at the sizes that its script wants.

    ``tokens`` is what the prompt came to when the engine last said so, plus estimates for what was added
    since; so errors of estimation do not add up.
    """

    filler: Filler
    sizes: Sizes
    tag: str
    messages: list[Message] = field(default_factory=list)
    tokens: float = 0.0

    def begin(self, system: str, system_tokens: int, prompt_tokens: int) -> None:
        """The first prompt: a system message, common to the family, and the agent's task."""
        self._add("system", system, system_tokens)
        self._write("user", prompt_tokens - self.tokens)

    def go_on(self, answer: str, answer_tokens: int, kept_tokens: int, prompt_tokens: int) -> int:
        """The next prompt: the answer to the last one, and what a tool found; ``prompt_tokens`` in all.

        Where only ``kept_tokens`` of the last prompt are kept, the agent has compacted its context: what is
        beyond them is cut off, the answer with it. Returns how much of the last prompt the new one has.
        """
        reusable = self.tokens
        if kept_tokens < 0.9 * self.tokens:
            reusable = min(reusable, kept_tokens)
            self._cut(kept_tokens)
        else:
            self._add("assistant", answer, answer_tokens)
        self._write("user", prompt_tokens - self.tokens)
        return int(reusable)

    def known(self, prompt_tokens: int) -> None:
        """The engine has counted the prompt."""
        self.tokens = float(prompt_tokens)

    def payload(self) -> list[dict[str, str]]:
        return [{"role": message.role, "content": message.content} for message in self.messages]

    def _write(self, role: str, tokens: float) -> None:
        """A message of so many tokens, or of very few where there is no room for more."""
        tag = f"{self.tag} {len(self.messages)}"
        words = self.sizes.words(max(1.0, tokens - self.sizes.per_message) - 2 * len(tag.split()))
        self._add(role, self.filler.text(tag, words), words * self.sizes.per_word)

    def _add(self, role: str, content: str, tokens: float) -> None:
        self.messages.append(Message(role, content, tokens + self.sizes.per_message))
        self.tokens += tokens + self.sizes.per_message

    def _cut(self, kept_tokens: float) -> None:
        left = kept_tokens
        for index, message in enumerate(self.messages):
            if message.tokens > left:
                share = max(0.0, left / message.tokens)
                cut = message.content[: round(len(message.content) * share)].rpartition(" ")[0]
                del self.messages[index:]
                if cut:
                    self.messages.append(Message(message.role, cut, left))
                break
            left -= message.tokens
        self.tokens = sum(message.tokens for message in self.messages)
