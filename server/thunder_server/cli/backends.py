"""``thunder backends``: the engines behind a server, and adding or taking away one while it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from thunder_server.cli.api import (
    DEFAULT_SERVER,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    print_json,
)
from thunder_server.cli.tables import backends_table, make_console

IdArgument = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="A backend as the list names it.", show_default=False)
]

backends = typer.Typer(
    no_args_is_help=False,
    epilog="Examples: thunder backends · thunder backends add http://gpu2:8000 · "
    "thunder backends drain gpu2:8000 --timeout 300 · thunder backends remove gpu2:8000",
)


def register(app: typer.Typer) -> None:
    app.add_typer(backends, name="backends")


@backends.callback(invoke_without_command=True)
def list_backends(
    context: typer.Context,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List backends: health, KV use, programs, hit rate. `add`, `drain` and `remove` change them."""
    if context.invoked_subcommand is not None:
        return
    with asking(server, api_key) as api:
        answer = api.control("GET", "/backends", holding="backends")
    if as_json:
        print_json(answer)
    elif answer["backends"]:
        console = make_console()
        console.print(backends_table(answer["backends"], console.width))
    else:
        typer.echo("No backends; add one: thunder backends add http://HOST:PORT")


@backends.command("add", epilog="Example: thunder backends add http://gpu2:8000 --weight 2")
def add_backend(
    url: Annotated[str, typer.Argument(metavar="URL", help="Root of the engine.", show_default=False)],
    engine: Annotated[str, typer.Option(metavar="vllm|sglang|openai", help="What serves there.")] = "vllm",
    weight: Annotated[float, typer.Option(min=0.000001, help="Its share of programs beside others'.")] = 1.0,
    capacity_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV cache, if not what the engine says.", show_default=False)
    ] = None,
    engine_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The engine's own API key.", show_default=False)
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve with one more backend from now on."""
    spec = {
        "url": url,
        "engine": engine,
        "weight": weight,
        "capacity_tokens": capacity_tokens,
        "api_key": engine_key,
    }
    with asking(server, api_key) as api:
        backend = api.control("POST", "/backends", body=spec)
    if as_json:
        print_json(backend)
    else:
        typer.echo(f"{backend['id']}: added; `thunder backends` shows when it is healthy")


@backends.command("drain", epilog="Example: thunder backends drain gpu2:8000 --timeout 300")
def drain_backend(
    backend_id: IdArgument,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Cut calls that still run then.", show_default=False),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give it no new programs; those on it move at their next call, running calls finish."""
    with asking(server, api_key) as api:
        backend = api.control("POST", f"/backends/{_quoted(backend_id)}/drain", body={"timeout_s": timeout})
    if as_json:
        print_json(backend)
    else:
        typer.echo(f"{backend_id}: draining, {backend['running']} calls still run")


@backends.command("remove", epilog="Example: thunder backends remove gpu2:8000")
def remove_backend(
    backend_id: IdArgument,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take it away at once; calls that run on it are cut. `drain` it first to spare them."""
    with asking(server, api_key) as api:
        backend = api.control("DELETE", f"/backends/{_quoted(backend_id)}")
    if as_json:
        print_json(backend)
    else:
        typer.echo(f"{backend_id}: removed")


def _quoted(backend_id: str) -> str:
    from urllib.parse import quote

    return quote(backend_id, safe="")
