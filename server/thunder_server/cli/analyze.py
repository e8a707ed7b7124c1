"""``thunder analyze``: is it worth it for this traffic?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_server.cli.replaying import Complaints, Replaying, read_traffic, study_of

if TYPE_CHECKING:
    from thunder_server.simulation.worth import Worth


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
    trace: Annotated[
        list[Path] | None, typer.Option(metavar="FILE…", help="Another way to name them.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="h100-qwen30b|cpu-small", help="Whose speed and size your engines have.")
    ] = "h100-qwen30b",
    replicas: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many engines.")] = 2,
    kv_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=16, help="KV cache of each engine.", show_default="the preset's"),
    ] = None,
    at_a_time: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="So many programs at once; the others follow as these end.",
            show_default="as recorded; of a trace, all at once",
        ),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Replay so many turns of each program, from a random place.",
            show_default="all; of a trace, 16",
        ),
    ] = None,
    longest_gap: Annotated[
        float | None,
        typer.Option(metavar="S", help="Cut longer gaps to this.", show_default="none; of a trace, 60"),
    ] = None,
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

      thunder analyze litellm-log.jsonl --json verdict.json
    """
    from rich.console import Console

    from thunder_server.cli import analyze_words
    from thunder_server.simulation.worth import weigh

    complaints = Complaints("analyze")
    named = [*(files or []), *(trace or [])]
    to_stdout = str(json_file) == "-"
    if json_file is not None and not to_stdout and not json_file.absolute().parent.is_dir():
        complaints.usage(f"--json: there is no folder {json_file.absolute().parent}")
    console = Console(stderr=to_stdout, highlight=False)
    traffic = read_traffic(named, complaints)
    study = study_of(
        traffic,
        named,
        engine=engine,
        replicas=replicas,
        kv_tokens=kv_tokens,
        at_a_time=at_a_time,
        turns=turns,
        longest_gap=longest_gap,
        seed=seed,
        complaints=complaints,
    )
    with console.status("replaying …") as status:
        worth = weigh(traffic, study, lambda what: status.update(f"replaying: {what} …"))
    if not any(row["steps_per_min"] for row in worth.rows):
        complaints.fail("no call fits into these engines; take larger ones (--kv-tokens, --engine)")
    analyze_words.show(console, study, worth)
    if json_file is not None:
        _write(json_file, worth, complaints)


def _write(path: Path, worth: Worth, complaints: Complaints) -> None:
    text = json.dumps(worth.to_json(), indent=1) + "\n"
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        complaints.fail(f"{path} cannot be written: {failure.strerror}")
