"""``thunder top``: backends and programs, live."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from thunder_server.cli.api import (
    DEFAULT_SERVER,
    AnswerError,
    Api,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    print_json,
)
from thunder_server.cli.tables import backends_table, make_console, programs_table


def register(app: typer.Typer) -> None:
    app.command(
        "top", epilog="Examples: thunder top · thunder top --once · thunder top --json | jq .backends"
    )(top)


def top(
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once and leave; so it is without a terminal.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch backends and programs. Ctrl-C leaves."""
    console = make_console()
    with asking(server, api_key) as api:
        seen = look(api)
        if as_json:
            print_json(seen)
        elif once or not console.is_terminal:
            console.print(picture(seen, console.width))
        else:
            _watch(api, seen, console, interval)


def look(api: Api) -> Any:
    """What stands now: ``{"backends": [...], "programs": [...]}``, of programs those that wait first."""
    seen = api.control("GET", "/backends", holding="backends")
    seen["programs"] = []
    for status in ("paused", "active"):
        listed = api.control("GET", "/programs", params={"status": status}, holding="programs")["programs"]
        seen["programs"] += sorted(listed, key=lambda one: one["opened_at"])
    return seen


def picture(seen: dict[str, Any], width: int, most: int | None = None) -> Group:
    """Both tables; of programs at most the first ``most``."""
    programs = seen["programs"]
    shown = programs if most is None else programs[:most]
    counts = ", ".join(
        f"{sum(one['status'] == status for one in programs)} {status}" for status in ("active", "paused")
    )
    parts: list[RenderableType] = [
        backends_table(seen["backends"], width),
        Text(f"{len(programs)} program{'s' * (len(programs) != 1)}: {counts}"),
        programs_table(shown, width),
    ]
    if len(shown) < len(programs):
        parts.append(Text(f"… and {len(programs) - len(shown)} more", "dim"))
    return Group(*parts)


def _watch(api: Api, seen: dict[str, Any], console: Console, interval: float) -> None:
    # Interrupted is how one leaves.
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(seen, console), refresh=True)
                time.sleep(interval)
                try:
                    seen = look(api)
                except AnswerError as wrong:
                    live.update(Group(_screen(seen, console), Text(str(wrong), "bold red")), refresh=True)
    except KeyboardInterrupt:
        return


def _screen(seen: dict[str, Any], console: Console) -> Group:
    return picture(seen, console.width, max(3, console.height - len(seen["backends"]) - 10))
