"""Programs and backends as tables, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PROGRAM_COLUMNS: Final[dict[str, Literal["left", "right"]]] = {
    "program": "left",
    "name": "left",
    "status": "left",
    "phase": "left",
    "backend": "left",
    "context": "right",
    "calls": "right",
    "waited": "right",
    "lease": "right",
}
_DISPENSABLE: Final = ("lease", "backend", "waited", "calls", "context", "name")
"""Columns that a narrow terminal does without, first what matters least."""
_STATUS_STYLES = {"active": "green", "paused": "yellow", "terminated": "dim"}


def make_console() -> Console:
    """The terminal; into a pipe tables go as wide as they are, for nobody to guess what was cut."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def plain(value: object, style: str = "") -> Text:
    """What a client chose to call itself, as harmless text: no markup, no terminal commands."""
    text = "" if value is None else str(value)
    return Text("".join(c if c.isprintable() else "�" for c in text), style=style)


def _table(left: Iterable[str], right: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def seconds(value: float | None) -> str:
    """
    >>> seconds(0.25), seconds(75), seconds(None)
    ('0.2s', '1m15s', '')
    """
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f}s" if value < 10 else f"{value:.0f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def tokens(value: float | None) -> str:
    """
    >>> tokens(950), tokens(24_500), tokens(1_340_000), tokens(None)
    ('950', '24.5k', '1.34M', '')
    """
    if value is None:
        return ""
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.2f}M"


def programs_table(programs: Iterable[dict[str, Any]], width: int) -> Table:
    """One line for each; what matters least is left out where ``width`` columns are too few."""
    rows = [_program_cells(program) for program in programs]
    headings = list(_PROGRAM_COLUMNS)
    for least in _DISPENSABLE:
        widths = [max(cell_len(heading), *(row[heading].cell_len for row in rows), 0) for heading in headings]
        if sum(widths) + 2 * len(widths) <= width:  # a space and a separator each
            break
        headings.remove(least)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify=_PROGRAM_COLUMNS[heading], no_wrap=True)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _program_cells(program: dict[str, Any]) -> dict[str, Text]:
    """What one program has to say in each of ``_PROGRAM_COLUMNS``."""
    status = program["outcome"] or ("closing" if program["closing"] else program["status"])
    waiting = program["calls"]["waiting"]
    name = plain(program["name"])
    name.truncate(32, overflow="ellipsis")
    return {
        "program": plain(program["id"]),
        "name": name,
        "status": Text(status, _STATUS_STYLES.get(program["status"], "")),
        "phase": _phase(program),
        "backend": plain(program["backend"]),
        "context": Text(tokens(program["tokens"]["context"])),
        "calls": Text(f"{program['calls']['total']}" + (f"+{waiting} due" if waiting else "")),
        "waited": Text(seconds(program["wait"]["total_s"])),
        "lease": Text("" if program["outcome"] else seconds(program["lease_left_s"])),
    }


def _phase(program: dict[str, Any]) -> Text:
    if program["status"] == "terminated":
        return Text("")
    tools = ", ".join(block["tool"] for block in program["acting"])
    text = plain(program["phase"] + (f" ({tools})" if tools else ""))
    if program["expects_call"]:
        text.append(" → call", style="cyan")
    return text


def backends_table(backends: Iterable[dict[str, Any]], width: int) -> Table:
    """One line for each; models are left out where ``width`` columns are too few."""
    wide = width >= 130
    table = _table(
        ["backend", *(["engine"] * wide), "state", *(["models"] * wide)],
        ["KV", "used", "programs", "run", "wait", "hits"],
    )
    for backend in backends:
        used, capacity, hit_rate = backend["used_tokens"], backend["capacity_tokens"], backend["hit_rate"]
        state, style = ("healthy", "green") if backend["healthy"] else ("down", "red")
        if backend["draining"]:
            state, style = f"{state}, draining", "yellow"
        table.add_row(
            plain(backend["id"]),
            *([plain(backend["engine"])] * wide),
            Text(state, style),
            *([plain(", ".join(backend["models"] or ()))] * wide),
            tokens(capacity) or "?",
            f"{used / capacity:.0%}" if capacity and used is not None else tokens(used),
            str(backend["active_programs"]),
            _count(backend["running"]),
            _count(backend["waiting"]),
            "" if hit_rate is None else f"{hit_rate:.0%}",
        )
    return table


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def program_details(program: dict[str, Any]) -> Table:
    """Everything about one program, one line for each field that says something."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in program.items():
        if value in (None, [], {}):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
        elif isinstance(value, list):
            value = "; ".join(
                ", ".join(f"{name} {_shown(inner)}" for name, inner in entry.items())
                if isinstance(entry, dict)
                else str(entry)
                for entry in value
            )
        table.add_row(key, plain(_shown(value)))
    return table


def _shown(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


_STATE_STYLES: Final = {"failed": "red", "reclaiming": "yellow", "spared": "yellow", "reclaimed": "dim"}


def size(value: int | None) -> str:
    """
    >>> size(512), size(3 * 2**20), size(None)
    ('512 B', '3.0 MiB', '')
    """
    if value is None:
        return ""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def resources_table(resources: Iterable[dict[str, Any]]) -> Table:
    """One line for each thing that a program holds or held."""
    table = _table(("program", "kind", "what", "host", "state", "why"), ("disk",))
    for one in resources:
        table.add_row(
            plain(one["program_id"]),
            Text(one["kind"]),
            plain(one["ref"][:12] if len(one["ref"]) == 64 else one["ref"]),
            plain(one["host"]),
            Text(one["state"] + (" (kept)" if one["keep"] else ""), _STATE_STYLES.get(one["state"], "")),
            plain(one["reason"]),
            Text(size(one.get("bytes"))),
        )
    return table


def sizes_by_program(resources: Iterable[dict[str, Any]]) -> Table:
    """What each program takes on disk, most first."""
    sums: dict[str, int] = {}
    for one in resources:
        sums[one["program_id"]] = sums.get(one["program_id"], 0) + (one.get("bytes") or 0)
    table = _table(("program",), ("disk",))
    for program_id, total in sorted(sums.items(), key=lambda entry: -entry[1]):
        table.add_row(plain(program_id), Text(size(total)))
    return table
