"""``thunder serve``: the server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thunder_server.cli.api import fail
from thunder_server.cli.words import SpreadBackends

if TYPE_CHECKING:
    from thunder_server.settings import Settings


def register(app: typer.Typer) -> None:
    app.command(
        "serve",
        cls=SpreadBackends,
        epilog="Examples: thunder serve --backend http://127.0.0.1:8000 · "
        "thunder serve --backend http://gpu1:8000 http://gpu2:8000 --policy paper · "
        "thunder serve --config thunder.toml --port 9000",
    )(serve)


def _option(metavar: str, text: str, default: str | None = None) -> Any:
    if default is not None:
        text = f"{text} (default {default})"
    return typer.Option(metavar=metavar, help=text, show_default=False)


def serve(
    backend: Annotated[
        list[str] | None, _option("URL…", "Engines to serve with; several, or repeated.")
    ] = None,
    engine: Annotated[
        str | None, _option("vllm|sglang|openai", "What serves at the backends.", "vllm")
    ] = None,
    capacity_tokens: Annotated[
        str | None, _option("N", "KV cache of each backend, where the engine itself does not say.")
    ] = None,
    policy: Annotated[
        str | None, _option("phase|paper|cap|passthrough", "When and whom to pause and restore.", "phase")
    ] = None,
    cap: Annotated[
        str | None, _option("N", "Programs active on a backend at once, for --policy cap.")
    ] = None,
    paper_interval: Annotated[str | None, _option("S", "Δt between two looks at memory.", "5")] = None,
    paper_decay: Annotated[
        str | None, _option("X", "Acting programs count X^-t after t seconds.", "2")
    ] = None,
    paper_lambda_max: Annotated[str | None, _option("F", "Pause above this part of capacity.", "1")] = None,
    paper_lambda_min: Annotated[str | None, _option("F", "Pause down to this part.", "1")] = None,
    host: Annotated[str | None, _option("HOST", "Where to listen.", "127.0.0.1")] = None,
    port: Annotated[str | None, _option("PORT", "0 takes a free one and says which.", "8300")] = None,
    api_key: Annotated[
        list[str] | None,
        _option("KEY", "Who shows it is admitted; may be repeated. Without any, everybody is."),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Listen beyond loopback without keys.", show_default=False),
    ] = None,
    open_metrics: Annotated[
        bool | None, typer.Option("--open-metrics", help="/metrics needs no key.", show_default=False)
    ] = None,
    auto_lease: Annotated[
        str | None, _option("S", "How long a silent program that nobody opened lives.", "600")
    ] = None,
    max_wait: Annotated[str | None, _option("S", "How long a call may wait for its turn.", "540")] = None,
    queue_heartbeat: Annotated[
        str | None, _option("S", "A stream that waits longer gets comments meanwhile.", "10")
    ] = None,
    max_body: Annotated[
        str | None, _option("BYTES", "Largest request body; 64MiB is fine too.", "64MiB")
    ] = None,
    engine_priority: Annotated[
        bool | None,
        typer.Option(
            "--engine-priority",
            help="Tell engines the priority of a call's program; vLLM needs --scheduling-policy priority.",
            show_default=False,
        ),
    ] = None,
    keep_warm: Annotated[
        bool | None,
        typer.Option(
            "--keep-warm",
            help="Send prompts of acting programs again, for one token, before engines drop their KV.",
            show_default=False,
        ),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option(
            "--shadow",
            help="Say where programs would go by what is cached where, but send them as without it.",
            show_default=False,
        ),
    ] = None,
    router_weights: Annotated[
        str | None, _option("M,L,T", "What counts: what is cached, load, latency. Together 1.", "0.5,0.3,0.2")
    ] = None,
    router_exploration: Annotated[
        str | None, _option("F", "Bonus of a backend with an empty cache, halved every 30 s.", "0.1")
    ] = None,
    router_gather: Annotated[
        str | None,
        _option("S", "How long calls may wait for another one to begin with what they share.", "0.02"),
    ] = None,
    kv_events: Annotated[
        str | None,
        _option("PORT", "Where vLLM publishes KV events (--kv-events-config): a port of it, or tcp://…"),
    ] = None,
    kv_events_replay: Annotated[
        str | None, _option("PORT", "And where it tells again what was missed (its replay_endpoint).")
    ] = None,
    tokenize_wait: Annotated[
        str | None, _option("S", "With KV events: how long a call may wait for its tokens.", "0.03")
    ] = None,
    poll: Annotated[str | None, _option("S", "How often to look at each backend.", "1")] = None,
    state: Annotated[
        str | None,
        _option(
            "PATH",
            "Where it is noted what programs hold, for the next start after a crash.",
            "in ~/.local/state/thunder, by port",
        ),
    ] = None,
    hibernate_after: Annotated[
        str | None, _option("S", "Pause the environment of a program that has been paused for so long.")
    ] = None,
    resource_root: Annotated[
        list[str] | None,
        _option(
            "DIR",
            "Directories that programs declare are removed only below this one; may be repeated.",
            "the temporary directory",
        ),
    ] = None,
    config: Annotated[
        str | None, _option("FILE", "TOML file with any of these, underscores for dashes.")
    ] = None,
) -> None:
    """Serve an OpenAI-compatible API in front of engines, scheduling whole programs.

    Each option is also a variable (THUNDER_MAX_WAIT) and a key of the TOML file (max_wait); a flag wins over
    a variable, that over the file. SIGTERM and Ctrl-C let running calls finish.
    """
    flags = {name: value for name, value in locals().items() if name != "config"}
    from thunder_server.settings import SettingsError, load_settings

    try:
        settings = load_settings(flags, os.environ, config)
    except SettingsError as wrong:
        fail(str(wrong), 2)
    _run(settings)


def _run(settings: Settings) -> None:
    import asyncio
    import logging

    from thunder_server.cli.event_loop import fastest_loop
    from thunder_server.journal import JournalError
    from thunder_server.service import ListenError, serve_until_told

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(serve_until_told(settings, ready=_ready))
    except (ListenError, JournalError) as wrong:
        fail(str(wrong))


def _ready(line: str) -> None:
    # Whoever waits for this line reads a pipe.
    print(line, flush=True)
