"""``thunder demo``: see the scheduler work, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(no_args_is_help=False)(demo)


def demo(
    backend: Annotated[
        list[str] | None,
        typer.Option(help="URL of a real vLLM engine; may be repeated. Without it, two are emulated."),
    ] = None,
    agents: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many agents.", show_default="48")
    ] = None,
    quick: Annotated[bool, typer.Option(help="24 agents, fewer turns, only one pair of runs.")] = False,
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

    Starts two emulated engines (each the time model of a pair of H100, accelerated), the real server, and
    48 agents written with the SDK and the openai client; replays recorded coding sessions through them, first
    with the policy passthrough, then with the default policy; and shows what came of it.

    [bold]Examples[/bold]

      thunder demo

      thunder demo --quick --json results.json

      thunder demo --working-set 0.5

      thunder demo --backend http://gpu-1:8000 --backend http://gpu-2:8000 --agents 64
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
    for path in (json_file, html_file):
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.absolute().parent}")
    options = Options(backends=tuple(backend or ()), agents=agents, quick=quick, working_set=working_set)
    raise typer.Exit(show(options, json_file=json_file, html_file=html_file))
