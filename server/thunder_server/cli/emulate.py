"""``thunder emulate``: a stand-in engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from thunder_server.cli.api import fail

if TYPE_CHECKING:
    from thunder_server.emulate import EngineSettings


def register(app: typer.Typer) -> None:
    app.command(
        "emulate",
        epilog="Examples: thunder emulate --port 8000 · "
        "thunder emulate --port 0 --preset h100-qwen30b --kv-tokens 200000 --speed 10",
    )(emulate)


def emulate(
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free one and says which.")
    ] = 8000,
    model: Annotated[str, typer.Option(metavar="NAME", help="What the model is called.")] = "emulated",
    preset: Annotated[
        str, typer.Option(metavar="h100-qwen30b|cpu-small", help="Whose speed and size it has.")
    ] = "cpu-small",
    kv_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Size of the KV cache, if not the preset's.")
    ] = None,
    block_size: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens in a block of it.")] = 16,
    max_model_len: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Longest prompt and answer together, if not the preset's."),
    ] = None,
    speed: Annotated[
        float, typer.Option(metavar="X", help="So many times as fast as the real engine.")
    ] = 1.0,
) -> None:
    """Serve a stand-in for an engine, on a machine without a GPU.

    It speaks OpenAI's API and schedules, caches, evicts and counts as vLLM does. Only computing is a
    timer, and what it says means nothing.
    """
    from thunder_server.emulate import EngineSettings
    from thunder_server.simulation.time_model import PRESETS

    if preset not in PRESETS:
        fail(f"there is no preset {preset!r}; there are {' and '.join(PRESETS)}", 2)
    try:
        settings = EngineSettings(
            model=model,
            preset=PRESETS[preset],
            kv_tokens=kv_tokens,
            block_size=block_size,
            max_model_len=max_model_len,
            speed=speed,
        )
    except ValueError as wrong:
        fail(str(wrong), 2)
    _run(settings, host, port)


def _run(settings: EngineSettings, host: str, port: int) -> None:
    import asyncio

    from thunder_server.cli.event_loop import fastest_loop

    try:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(_serve(settings, host, port))
    except OSError as wrong:
        fail(f"cannot listen on {host}:{port} ({wrong.strerror or wrong}); --port 0 takes a free one")


async def _serve(settings: EngineSettings, host: str, port: int) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from thunder_server.emulate import EmulatedServer

    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with EmulatedServer(settings, host=host, port=port) as server:
        # Whoever waits for this line reads a pipe.
        print(
            f"thunder emulate: ready at {server.url} · {settings.model} · {settings.preset.about}"
            f" · {server.engine.capacity_tokens} KV tokens",
            flush=True,
        )
        await told.wait()
