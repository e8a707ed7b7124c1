"""``thunder analyze``: is it worth it for this traffic?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thunder_server.cli.replaying import (
    AtATime,
    Complaints,
    Engine,
    KvTokens,
    LongestGap,
    Replaying,
    Replicas,
    Trace,
    Turns,
    ask_server,
    check_folder,
    read_traffic,
    study_of,
    write_json,
)

TURNS = 16


def register(app: typer.Typer) -> None:
    app.command("analyze", cls=Replaying)(analyze)


def analyze(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…",
            help="A trace, a capture of a server's event stream, or a log of requests and responses: JSON "
            "lines, plain or gzipped. Several of one kind count as one.",
            show_default=False,
        ),
    ] = None,
    trace: Trace = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Instead of a file: what this server remembers of its last calls."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="THUNDER_API_KEY", metavar="KEY", help="A key of that server, if it has any."),
    ] = None,
    engine: Engine = "h100-qwen30b",
    replicas: Replicas = 2,
    kv_tokens: KvTokens = None,
    at_a_time: AtATime = None,
    turns: Turns = None,
    longest_gap: LongestGap = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Equal seeds give equal results.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write everything as JSON; alone or -: to stdout."),
    ] = None,
) -> None:
    """Is the scheduler worth it for this traffic?

    Tells how much of the prompts repeats, how much context is in play over time against the engines' memory,
    and how much faster the same work was in a replay on simulated engines; and says so plainly where the
    answer is: do not bother.

    [bold]Examples[/bold]

      thunder analyze sessions.jsonl.gz --replicas 4 --kv-tokens 700000

      curl -N http://127.0.0.1:8300/thunder/v1/stream > monday    [dim]# for as long as you like[/dim]

      thunder analyze monday

      thunder analyze --server http://127.0.0.1:8300

      thunder analyze litellm-log.jsonl --json verdict.json
    """
    from rich.console import Console

    from thunder_server.cli import analyze_words
    from thunder_server.simulation.worth import weigh

    complaints = Complaints("analyze")
    named = [*(files or []), *(trace or [])]
    to_stdout = str(json_file) == "-"
    check_folder(json_file, complaints)
    console = Console(stderr=to_stdout, highlight=False)
    if server is not None and named:
        complaints.usage("--server stands in place of files; give one of them")
    traffic = (
        ask_server(server, api_key, complaints) if server is not None else read_traffic(named, complaints)
    )
    study = study_of(
        traffic,
        server or "+".join(path.name for path in named),
        engine=engine,
        replicas=replicas,
        kv_tokens=kv_tokens,
        at_a_time=at_a_time,
        turns=turns,
        longest_gap=longest_gap,
        turns_of_traces=TURNS,
        seed=seed,
        complaints=complaints,
    )
    with console.status("replaying …") as status:
        worth = weigh(traffic, study, lambda what: status.update(f"replaying: {what} …"))
    if not any(row["steps_per_min"] for row in worth.rows):
        complaints.fail("no call fits into these engines; take larger ones (--kv-tokens, --engine)")
    analyze_words.show(console, study, worth)
    if json_file is not None:
        write_json(json_file, worth.to_json(), complaints)
