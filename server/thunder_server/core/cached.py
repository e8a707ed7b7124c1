"""What one engine's prefix cache holds, as far as it is known.

An engine that publishes its cache is believed to the block. Of any other one knows what it was sent, and
that caches drop what was used longest ago, of one prompt its end before its beginning: so that is kept here
too, as many tokens as the engine has room for, and corrected by what each answer says was cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from thunder_server.core.prefix import Chain, Prompt

MOST_PIECES = 1 << 16
"""Pieces remembered of one engine, whatever its capacity."""
MOST_BLOCKS = 1 << 21
"""Blocks remembered of one engine: 32 M tokens in blocks of 16. What it stores beyond is not counted on."""
SHORTFALL = 0.1
"""If an answer had by this share less cached than expected, something was dropped; by less, an answer before
it has not come back as it was given, or its length was guessed wrong."""


class Belief:
    """Least recently used first, which prefixes an engine holds; sizes are tokens.

    Example:
        >>> belief = Belief()
        >>> _ = belief.use(Chain(keys=(1, 2), ends=(100, 150)), capacity=200)
        >>> _ = belief.use(Chain(keys=(1, 3), ends=(100, 180)), capacity=200)
        >>> belief.tokens, belief.held(Chain(keys=(1, 2), ends=(100, 150)))
        (180, 100)
    """

    def __init__(self) -> None:
        self._pieces: OrderedDict[int, tuple[int, int]] = (
            OrderedDict()
        )  # tokens, and the number of the last use
        self._uses = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def use(self, chain: Chain, capacity: float, answer: int = 0) -> bool:
        """The engine has this prompt now, and ``answer`` tokens generated after it; whether that is news."""
        pieces = self._pieces
        self._uses += 1
        news = False
        if answer:
            news = self._put(_after(chain.keys[-1]), answer)
        for index in range(len(chain) - 1, -1, -1):  # the beginning is the last to be dropped
            key = chain.keys[index]
            news |= self._put(key, chain.ends[index] - (chain.ends[index - 1] if index else 0))
            if index < len(chain) - 1:
                self._drop(_after(key))  # the answer that came after it is part of this chain by now
        while (self.tokens > capacity or len(pieces) > MOST_PIECES) and len(pieces) > 1:
            self._drop(next(iter(pieces)))
            news = True
        return news

    def held(self, chain: Chain) -> int:
        """Tokens of the chain's longest prefix that is there; with the answer after it, if it goes on."""
        reach = chain.reach(self._pieces)
        if not reach:
            return 0
        answer, _ = self._pieces.get(_after(chain.keys[reach - 1]), (0, 0)) if reach < len(chain) else (0, 0)
        return min(chain.ends[reach - 1] + answer, chain.ends[-1])

    def last_use(self, chain: Chain) -> int:
        """The number of the latest use of the longest prefix that is there; 0 if none is."""
        reach = chain.reach(self._pieces)
        return self._pieces[chain.keys[reach - 1]][1] if reach else 0

    def drop_until(self, use: int) -> None:
        """What was last used then was dropped: so was, before it, whatever had not been used for longer."""
        while self._pieces and next(iter(self._pieces.values()))[1] <= use:
            self._drop(next(iter(self._pieces)))

    def clear(self) -> None:
        self._pieces.clear()
        self.tokens = 0

    def _put(self, key: int, tokens: int) -> bool:
        before, use = self._pieces.get(key, (0, 0))
        self._pieces[key] = (tokens, self._uses)
        self._pieces.move_to_end(key)
        self.tokens += tokens - before
        return not use

    def _drop(self, key: int) -> None:
        self.tokens -= self._pieces.pop(key, (0, 0))[0]


def _after(key: int) -> int:
    """By what the answer after this piece goes: keys are not negative, so it meets no piece."""
    return ~key


class Cached:
    """One engine's cache. ``version`` rises whenever what it holds has changed."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.belief = Belief()
        self.exact = False
        """Whether ``blocks`` are all there are: the engine publishes, and nothing was missed."""
        self.version = 0
        self._coming: dict[int, int] = {}  # blocks that running calls compute, and how many calls

    def sent(self, prompt: Prompt, capacity: float) -> Sequence[int]:
        """The engine is sent this prompt; the blocks that it will have computed when it has `answered`.

        Who comes after it finds them: engines begin with calls in the order in which they come, and what
        has been begun can be hit.
        """
        self._use(prompt, capacity, 0)
        if prompt.blocks is None or not self.exact:
            return ()
        keys = prompt.blocks.keys[prompt.blocks.reach(self.blocks) :]
        for key in keys:
            self._coming[key] = self._coming.get(key, 0) + 1
        self.version += bool(keys)
        return keys

    def settled(self, coming: Sequence[int]) -> None:
        """The call that was to compute these blocks is over."""
        for key in coming:
            count = self._coming.get(key, 0)
            if count > 1:
                self._coming[key] = count - 1
            elif count:
                del self._coming[key]
        self.version += bool(coming)

    def answered(self, prompt: Prompt, capacity: float, answer: int) -> None:
        """The engine has this prompt now, and its answer of so many tokens."""
        self._use(prompt, capacity, answer)

    def stored(self, keys: Iterable[int]) -> None:
        """The engine says that it holds these blocks now."""
        if len(self.blocks) < MOST_BLOCKS:
            self.blocks.update(keys)
            self.version += 1

    def evicted(self, keys: Iterable[int]) -> None:
        """The engine says that it has dropped these blocks."""
        self.blocks.difference_update(keys)
        self.version += 1

    def cleared(self, *, exact: bool) -> None:
        """All is gone, or might be; ``exact``: from now on the engine tells everything."""
        self.belief.clear()
        self.lost_sight()
        self.exact = exact

    def lost_sight(self) -> None:
        """The engine does not tell any longer what it holds."""
        self.blocks.clear()
        self._coming.clear()
        self.exact = False
        self.version += 1

    def _use(self, prompt: Prompt, capacity: float, answer: int) -> None:
        if len(prompt.messages):
            self.version += self.belief.use(prompt.messages, capacity, answer)

    def held(self, prompt: Prompt) -> int:
        """Tokens of the prompt that are cached; the engine's own word where there is one."""
        blocks = prompt.blocks
        told = 0
        if blocks is not None and (reach := self._reach(blocks)):
            told = blocks.ends[reach - 1]
        if blocks is not None and self.exact:
            return told
        # The last token is computed in any case, for what comes after it.
        return max(told, min(self.belief.held(prompt.messages), prompt.tokens - 1))

    def _reach(self, blocks: Chain) -> int:
        """How many blocks from the first on are there, or on their way."""
        reach = blocks.reach(self.blocks)
        while self._coming and (further := blocks.reach(self._coming, reach)) > reach:
            reach = blocks.reach(self.blocks, further)
        return reach

    def reconcile(self, predicted: int, cached: int, last_use: int) -> None:
        """An answer says how many tokens of its prompt were there when it began; they had last been used in
        use number ``last_use``."""
        if cached < (1 - SHORTFALL) * predicted:
            self.belief.drop_until(last_use)
            self.version += 1
