"""What the pages of the demo and the simulator have in common: their style and their pictures of cost."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files

_COSTS = (
    ("decode", "generating", "var(--accent)"),
    ("prefill", "prefilling", "var(--prefill)"),
    ("recompute", "prefilling again", "var(--again)"),
    ("caching", "held while a tool runs", "var(--acting)"),
    ("unused", "idle while somebody waits", "var(--waiting)"),
)


def css() -> str:
    """The style sheet, light and dark."""
    return (files("thunder_server.look") / "report.css").read_text(encoding="utf-8")


def cost_bars(runs: Sequence[tuple[str, Mapping[str, float] | None]]) -> str:
    """What the engines' memory was spent on, one bar a named run on a common scale; nothing if one of them
    does not know."""
    known = [(name, cost) for name, cost in runs if cost is not None]
    if len(known) < len(runs):
        return ""
    most = max(sum(cost.values()) for _, cost in known) or 1
    bars = []
    for name, cost in known:
        pieces = "".join(
            f'<i style="flex:none;width:{100 * cost[key] / most:.2f}%;background:{colour}" '
            f'data-tip="{what}: {cost[key] / 1e6:.1f} M token-seconds"></i>'
            for key, what, colour in _COSTS
        )
        bars.append(f'<div class="cost"><small>{html.escape(name)}</small><div>{pieces}</div></div>')
    keys = "".join(f'<span><b style="background:{colour}"></b>{what}</span>' for _, what, colour in _COSTS)
    return (
        '<div class="head costs"><h3>What KV memory was spent on</h3><small>tokens × seconds</small></div>'
        f'{"".join(bars)}<div class="keys">{keys}</div>'
    )
