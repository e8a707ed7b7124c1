"""``thunder resources`` and ``thunder gc``: what programs hold, and what was left behind."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thunder_server.cli.api import (
    DEFAULT_SERVER,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    fail,
    print_json,
)
from thunder_server.cli.programs import checked_id
from thunder_server.cli.tables import make_console, resources_table, sizes_by_program

_MEASURING_S = 60.0


def register(app: typer.Typer) -> None:
    app.command(
        "resources",
        epilog="Examples: thunder resources · thunder resources prg_42 --disk · "
        "thunder resources --state failed --json",
    )(resources)
    app.command("gc", epilog="Examples: thunder gc --dry-run · thunder gc")(gc)


def resources(
    program_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this program's.", show_default=False)
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those: declared, reclaimed, failed, …")
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk", help="Measure what they take on disk, and sum it up by program.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """What programs hold outside the GPU, and what became of it: containers, directories, processes, …"""
    params = {"program_id": None if program_id is None else checked_id(program_id), "state": state}
    asked = {key: value for key, value in params.items() if value is not None} | (
        {"disk": "1"} if disk else {}
    )
    with asking(server, api_key) as api:
        answer = api.control("GET", "/resources", params=asked, holding="resources", timeout=_MEASURING_S)
    if as_json:
        print_json(answer)
        return
    if not answer["resources"]:
        typer.echo("No resources.")
        return
    console = make_console()
    console.print(resources_table(answer["resources"]))
    if disk:
        console.print(sizes_by_program(answer["resources"]))


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and why; change nothing.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reclaim what was left behind.

    That is what could not be reclaimed before, and Docker objects labelled with a program that is over, or
    that this server has not heard of for longer than a lease. Nothing without such a label is touched.
    """
    with asking(server, api_key) as api:
        body = {"dry_run": dry_run}
        answer = api.control("POST", "/gc", body=body, holding="items", timeout=_MEASURING_S)
    if as_json:
        print_json(answer)
    else:
        _report(answer)
    if answer["errors"]:
        fail("; ".join(f"{one['host']} was left out: {one['error']}" for one in answer["errors"]))


def _report(answer: dict[str, Any]) -> None:
    for item in answer["items"]:
        verb = "would reclaim" if answer["dry_run"] else "reclaims"
        what = f"{item['kind']} {item['ref']} on {item['host']} of {item['program_id']}"
        make_console().print(f"{verb} {what}: {item['why']}", markup=False, highlight=False, soft_wrap=True)
    if not answer["items"]:
        typer.echo("Nothing was left behind.")
    elif not answer["dry_run"]:
        typer.echo("`thunder resources` shows what is under way, or failed again.")
