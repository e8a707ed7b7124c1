"""``thunder reaper``: reclaims on another machine what programs there leave behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from thunder_server.cli.api import DEFAULT_SERVER, KeyOption, ServerOption, fail
from thunder_server.cli.words import Words


class _Several(Words):
    several = frozenset({"--host", "--resource-root"})


def register(app: typer.Typer) -> None:
    app.command(
        "reaper",
        cls=_Several,
        epilog="Examples: thunder reaper --server http://head:8300 · "
        "DOCKER_HOST=tcp://box:2375 thunder reaper --server http://head:8300 --host box · "
        "thunder reaper --server http://head:8300 --resource-root /scratch/agents",
    )(reaper)


def reaper(
    server: ServerOption = DEFAULT_SERVER,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help="Names by which programs call this machine; several, or repeated. (default: its own name)",
            show_default=False,
        ),
    ] = None,
    resource_root: Annotated[
        list[str] | None,
        typer.Option(
            envvar="THUNDER_RESOURCE_ROOT",
            metavar="DIR…",
            help="Directories that programs declare are removed only below these. "
            "(default: the temporary directory)",
            show_default=False,
        ),
    ] = None,
    api_key: KeyOption = None,
) -> None:
    """Remove what programs leave on this machine, and prepare their environments, for a server elsewhere.

    A server takes care of its own machine; run one reaper on every other one that programs hold something on,
    with DOCKER_HOST if its Docker engine is not the usual one. It holds no state: restart it, or the server,
    at any time.
    """
    import asyncio
    import logging

    from thunder_sdk import wire
    from thunder_server.reclaim.reaper import Refused

    try:
        root = wire.root_url(server)
    except ValueError as wrong:
        fail(f"--server: {wrong}", 2)
    roots = [Path(directory) for directory in resource_root or ()]
    for directory in roots:
        if not directory.is_absolute():
            fail(f"--resource-root: {directory} is no absolute path", 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    try:
        asyncio.run(_serve(root, api_key, host or [], roots))
    except Refused as refused:
        fail(str(refused))


async def _serve(root: str, key: str | None, names: list[str], roots: list[Path]) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import os
    import signal

    from thunder_server.reclaim.reaper import Reaper
    from thunder_server.reclaim.worker import make_worker

    worker = make_worker(roots=roots, docker_host=os.environ.get("DOCKER_HOST"), names=names)
    serving = asyncio.ensure_future(Reaper(worker, root, key).run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    # Whoever waits for this line reads a pipe.
    print(f"thunder reaper: serves {', '.join(worker.hosts)} for {root}", flush=True)
    with suppress(asyncio.CancelledError):
        await serving
