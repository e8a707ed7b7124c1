"""Command lines in which an option takes several words, or none."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperCommand


class Words(TyperCommand):
    """``several``: options that every following word belongs to, up to the next option. ``optional``:
    options that may stand alone, and what they mean then."""

    several: ClassVar[frozenset[str]] = frozenset()
    optional: ClassVar[dict[str, str]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        taking = ""
        for word, following in zip(args, [*args[1:], None], strict=False):
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                taking = name if name in self.several else ""
                spread.append(word)
                alone = following is None or (following.startswith("-") and following != "-")
                if alone and word in self.optional:
                    spread.append(self.optional[word])
            elif taking and spread[-1] != taking:
                spread += [taking, word]
            else:
                spread.append(word)
        return super().parse_args(ctx, spread)


class SpreadBackends(Words):
    """``--backend`` takes several."""

    several = frozenset({"--backend"})
