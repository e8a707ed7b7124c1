"""What the programs on one backend have in common: it is in memory once, so it counts once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from thunder_server.core.prefix import Chain

P = TypeVar("P", bound=Hashable)

NOTHING = Chain((), ())


class Sharing(Generic[P]):
    """Who holds which prefix.

    As keys are chained, of one chain's pieces the first have the most holders; so what a chain shares with
    others is always its beginning.

    Example:
        >>> sharing = Sharing[str]()
        >>> sharing.hold("a", Chain(keys=(1, 2), ends=(100, 150)))
        >>> sharing.hold("b", Chain(keys=(1, 3), ends=(100, 180)))
        >>> sharing.credit, sharing.of("a"), sharing.common(Chain(keys=(1, 9), ends=(100, 120)))
        (100, 100, 100)
    """

    def __init__(self) -> None:
        self.credit = 0
        """Tokens counted too often if every holder's are added up."""
        self.chains: dict[P, Chain] = {}
        self.holders: dict[int, tuple[int, int]] = {}  # how many, and the tokens of the piece

    def hold(self, program: P, chain: Chain) -> None:
        """The program holds this chain now, and no longer what it held before."""
        before = self.chains.get(program, NOTHING)
        if before is chain:
            return
        same = 0
        for mine, other in zip(before.keys, chain.keys, strict=False):
            if mine != other:
                break
            same += 1
        self._release(before, same)
        for index in range(same, len(chain)):
            key = chain.keys[index]
            count, tokens = self.holders.get(key, (0, 0))
            if count:
                self.credit += tokens
            else:
                tokens = chain.ends[index] - (chain.ends[index - 1] if index else 0)
            self.holders[key] = (count + 1, tokens)
        self.chains[program] = chain

    def drop(self, program: P) -> None:
        """The program holds nothing any longer."""
        chain = self.chains.pop(program, None)
        if chain is not None:
            self._release(chain, 0)

    def of(self, program: P) -> int:
        """Tokens that the program has in common with others: they stay if it goes."""
        return self._counted(self.chains.get(program, NOTHING), 2)

    def common(self, chain: Chain) -> int:
        """Tokens of a chain that comes in which are held already."""
        return self._counted(chain, 1)

    def _counted(self, chain: Chain, least: int) -> int:
        shared = 0
        for key in chain.keys:
            count, tokens = self.holders.get(key, (0, 0))
            if count < least:
                break
            shared += tokens
        return shared

    def _release(self, chain: Chain, start: int) -> None:
        for key in chain.keys[start:]:
            count, tokens = self.holders[key]
            if count == 1:
                del self.holders[key]
            else:
                self.holders[key] = (count - 1, tokens)
                self.credit -= tokens
