"""``thunder emulate``: serve a stand-in engine."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from thunder_server.emulate import EngineSettings


def register(app: typer.Typer) -> None:
    app.command(no_args_is_help=False)(emulate)


def emulate(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one and prints it.")
    ] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="The model's name.")] = "emulated",
    preset: Annotated[
        str, typer.Option(help="Whose speed and size: h100-qwen30b or cpu-small.")
    ] = "cpu-small",
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV cache in tokens.", show_default="the preset's")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block of the KV cache.")] = 16,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Longest prompt and answer, in tokens.",
            show_default="the preset's, at most the cache",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(help="How many times faster than the real engine.")] = 1.0,
) -> None:
    """A stand-in engine for machines without a GPU: OpenAI's API, a paged prefix cache, vLLM's metric names.

    It schedules, caches and evicts as vLLM does; only the computing is a timer. Without --preset it is a
    small model on a CPU.

    [bold]Examples[/bold]

      thunder emulate --port 8000

      thunder emulate --port 0 --preset h100-qwen30b --kv-tokens 200000 --speed 10
    """
    from thunder_server.emulate import EngineSettings
    from thunder_server.simulation.time_model import PRESETS

    if preset not in PRESETS:
        raise typer.BadParameter(f"{preset!r} is none of {', '.join(PRESETS)}", param_hint="--preset")
    try:
        settings = EngineSettings(
            model=model,
            preset=PRESETS[preset],
            kv_tokens=kv_tokens,
            block_size=block_size,
            max_model_len=max_model_len,
            speed=speed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        asyncio.run(_serve(settings, host, port))
    except OSError as error:
        typer.echo(f"thunder emulate: cannot listen on {host}:{port}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None


async def _serve(settings: EngineSettings, host: str, port: int) -> None:
    """Until SIGINT or SIGTERM."""
    from thunder_server.emulate import EmulatedServer

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with EmulatedServer(settings, host=host, port=port) as server:
        print(f"thunder emulate: {settings.model} ({settings.preset.name}) ready at {server.url}", flush=True)
        await stop.wait()
