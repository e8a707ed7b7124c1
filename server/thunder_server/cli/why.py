"""``thunder why``: why a program stands where it stands, in plain words."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from thunder_server.cli.api import (
    DEFAULT_SERVER,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    print_json,
)
from thunder_server.cli.programs import checked_id
from thunder_server.cli.tables import make_console, plain, seconds, tokens


def register(app: typer.Typer) -> None:
    app.command("why", epilog="Examples: thunder why prg_42 · thunder why prg_42 --json")(why)


def why(
    program_id: Annotated[str, typer.Argument(metavar="ID", help="A program's id.", show_default=False)],
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a program runs, waits or ended, and what was decided about it."""
    with asking(server, api_key) as api:
        answer = api.control("GET", f"/programs/{checked_id(program_id)}/why", holding="reason")
    if as_json:
        print_json(answer)
    else:
        make_console().print(story(program_id, answer, time.time()))


def story(program_id: str, answer: dict[str, Any], now: float) -> Group:
    """The answer as prose: the present first, then the past, latest last."""
    lines = [Text.assemble(plain(program_id, "bold"), " is ", plain(answer["status"], "bold"), ": ")]
    lines[0].append_text(plain(answer["reason"]))
    if answer["waiting_for"]:
        lines.append(Text.assemble("It waits for ", plain(answer["waiting_for"])))
    if answer["queue_position"] is not None:
        lines.append(Text(f"Its place in the queue: {answer['queue_position']}"))
    needed, free = answer["needed_tokens"], answer["free_tokens"]
    if needed is not None and free is not None and answer["status"] != "terminated":
        lines.append(Text(f"It needs {tokens(needed)} tokens; {tokens(free)} are free"))
    longest = max((len(step["decision"]) for step in answer["decisions"]), default=0)
    for step in answer["decisions"]:
        decision = f"{step['decision']:<{longest}}"
        ago = seconds(max(0.0, now - step["at"]))
        lines.append(
            Text.assemble(
                (f"{ago:>8} ago  ", "dim"),
                plain(decision, "cyan"),
                "  ",
                plain(step["reason"]),
            )
        )
    return Group(*lines)
