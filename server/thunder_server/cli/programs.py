"""``thunder programs``: what runs, what waits, and ending one by hand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thunder_server.cli.api import DEFAULT_SERVER, AnswerError, Api, JsonOption, KeyOption, ServerOption, fail, print_json

STATUSES = ("active", "paused", "terminated")
OUTCOMES = ("success", "error", "dropped")

programs = typer.Typer(
    help="List programs; show or close one.",
    epilog="Examples: `thunder programs --status paused` · `thunder programs show prg_42` · "
    "`thunder programs close prg_42 --outcome dropped`",
)


def register(app: typer.Typer) -> None:
    app.add_typer(programs, name="programs")


@programs.callback(invoke_without_command=True)
def list_programs(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(metavar="|".join(STATUSES), help="Only these.")] = None,
    group: Annotated[str | None, typer.Option(help="Only programs of this group.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List programs: status, phase, backend, context, waits. Without a command, that is all it does."""
    if context.invoked_subcommand is not None:
        return
    if status is not None and status not in STATUSES:
        fail(f"--status: {status!r} is none; there are {', '.join(STATUSES)}", 2)
    params = {key: value for key, value in (("status", status), ("group", group)) if value is not None}
    answer = _asked(lambda: Api(server, api_key).get("/programs", params=params))
    if as_json:
        return print_json(answer)
    from rich.console import Console

    from thunder_server.cli.tables import programs_table

    console = Console()
    if not answer["programs"]:
        console.print("No programs." if not params else "No such programs.")
    else:
        console.print(programs_table(answer["programs"]))
    return None
