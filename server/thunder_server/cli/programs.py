"""``thunder programs``: what runs, what waits, and ending one by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from thunder_sdk import wire
from thunder_server.cli.api import (
    DEFAULT_SERVER,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    fail,
    print_json,
)
from thunder_server.cli.tables import make_console, program_details, programs_table

STATUSES = ("active", "paused", "terminated")
OUTCOMES = ("success", "error", "dropped")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A program's id.", show_default=False)]

programs = typer.Typer(
    no_args_is_help=False,
    epilog="Examples: thunder programs --status paused · thunder programs show prg_42 · "
    "thunder programs close prg_42 --outcome dropped",
)


def register(app: typer.Typer) -> None:
    app.add_typer(programs, name="programs")


def checked_id(program_id: str) -> str:
    if not wire.is_valid_id(program_id):
        fail(f"{program_id!r} is no program id: {wire.ID_GRAMMAR}", 2)
    return program_id


@programs.callback(invoke_without_command=True)
def list_programs(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(metavar="|".join(STATUSES), help="Only these.")] = None,
    group: Annotated[str | None, typer.Option(help="Only programs of this group.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List programs: where each stands, what it holds, how long it waited. `show` and `close` concern one."""
    if context.invoked_subcommand is not None:
        return
    if status is not None and status not in STATUSES:
        fail(f"--status: {status!r} is none; there are {', '.join(STATUSES)}", 2)
    params = {key: value for key, value in (("status", status), ("group", group)) if value is not None}
    with asking(server, api_key) as api:
        answer = api.control("GET", "/programs", params=params, holding="programs")
    if as_json:
        print_json(answer)
    elif answer["programs"]:
        console = make_console()
        console.print(programs_table(answer["programs"], console.width))
    else:
        typer.echo("No such programs." if params else "No programs.")


@programs.command("show", epilog="Example: thunder programs show prg_42 --json")
def show_program(
    program_id: IdArgument,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Everything about one program."""
    with asking(server, api_key) as api:
        program = api.control("GET", f"/programs/{checked_id(program_id)}")
    if as_json:
        print_json(program)
    else:
        make_console().print(program_details(program))


@programs.command("close", epilog="Example: thunder programs close prg_42 --outcome dropped")
def close_program(
    program_id: IdArgument,
    outcome: Annotated[
        str,
        typer.Option(
            metavar="|".join(OUTCOMES), help="With dropped its calls are cancelled at once, else they finish."
        ),
    ] = "success",
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Terminate a program. Harmless if it is over already."""
    if outcome not in OUTCOMES:
        fail(f"--outcome: {outcome!r} is none; there are {', '.join(OUTCOMES)}", 2)
    with asking(server, api_key) as api:
        program = api.control("DELETE", f"/programs/{checked_id(program_id)}", params={"outcome": outcome})
    if as_json:
        print_json(program)
    elif program["opened_at"] is None:
        typer.echo(f"{program_id}: {program['reason']}; `thunder programs` lists what there is")
    else:
        typer.echo(
            f"{program_id}: {'closing, its calls finish' if program['closing'] else program['status']}"
        )
