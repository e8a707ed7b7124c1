"""``thunder demo``: see the scheduler work, on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from thunder_server.cli.words import SpreadBackends


def register(app: typer.Typer) -> None:
    app.command(cls=SpreadBackends, no_args_is_help=False)(demo)


def demo(
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="URL…", help="Real vLLM engines; several, or repeated. Else two are emulated."),
    ] = None,
    agents: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many agents.", show_default="48")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="24 agents, fewer turns, only one pair of runs.")
    ] = False,
    working_set: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=10,
            help="Run one pair only, with contexts that sum up to so many times the KV cache.",
            show_default="2.0, then 0.5 with a quarter of the agents",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON; - for stdout.")
    ] = None,
    html_file: Annotated[
        Path, typer.Option("--html", metavar="FILE", help="Where the page with the timelines goes.")
    ] = Path("thunder-demo.html"),
) -> None:
    """The whole story on this machine: recorded agents without the scheduler, then with it.

    Two emulated engines, the real server, and 48 agents written with the SDK and the openai client.

    First with the policy passthrough, then with the server's default; a table and a page tell the difference.

    [bold]Examples[/bold]

      thunder demo

      thunder demo --quick --json results.json

      thunder demo --working-set 0.5

      thunder demo --backend http://gpu-1:8000 http://gpu-2:8000 --agents 64
    """
    try:
        from thunder_server.demo.screen import show
    except ModuleNotFoundError as missing:
        if missing.name != "openai":
            raise
        typer.echo(
            "thunder demo: its agents use the package 'openai', which is not installed: "
            "pip install 'thunder-sdk[demo]'",
            err=True,
        )
        raise typer.Exit(1) from None
    from thunder_server.demo.story import Options

    for url in backend or ():
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(
                f"{url!r} is no URL; write it like http://127.0.0.1:8000", param_hint="--backend"
            )
    for name, path in (("--json", json_file), ("--html", html_file)):
        if path is not None and (name, str(path)) != ("--json", "-"):
            _check_writable(path, name)
    options = Options(backends=tuple(backend or ()), agents=agents, quick=quick, working_set=working_set)
    raise typer.Exit(show(options, json_file=json_file, html_file=html_file))


def _check_writable(path: Path, option: str) -> None:
    """Now, not after a minute and a half of work."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint=option)
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written", param_hint=option)
