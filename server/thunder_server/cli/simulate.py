"""``thunder simulate``: policies over traces, in virtual time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from thunder_server.cli.words import Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from thunder_server.core import Policy
    from thunder_server.simulation.simulator import Machines
    from thunder_server.simulation.study import Result, Study, Workload

SHADOW = "shadow"
WORKLOADS = "swe|assistant|orchestration|rl-group|burst"


class _Simulate(Words):
    several = frozenset({"--trace"})
    optional = {"--json": "-", "--html": "thunder-simulate.html"}  # noqa: RUF012 - declared so by Words


def register(app: typer.Typer) -> None:
    app.command("simulate", cls=_Simulate, no_args_is_help=False)(simulate)


def simulate(
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE…", help="Recorded sessions, JSON lines, plain or gzipped; several files are one."
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar=WORKLOADS,
            help="Seeded agents of one kind.",
            show_default="96 recorded coding agents, which the package holds",
        ),
    ] = None,
    programs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=100_000, help="How many.", show_default="96; of a trace, all"),
    ] = None,
    at_a_time: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="So many at once; the others follow as these end.",
            show_default="all at once",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many engines.")] = 2,
    kv_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=16, help="KV cache of each engine.", show_default="the preset's"),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="h100-qwen30b|cpu-small", help="Whose speed and size they have.")
    ] = "h100-qwen30b",
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Policies, separated by commas. cap:N for N programs an engine, paper:X for decay X; "
            "phase:warm: phase with --keep-warm; phase:shadow: phase without the router; "
            "oracle: phase, if it knew the future.",
            show_default="all but oracle",
        ),
    ] = None,
    signals: Annotated[
        str,
        typer.Option(
            metavar="explicit|inferred",
            help="Whether clients tell what they do, or only call.",
        ),
    ] = "explicit",
    turns: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Turns of each recorded session, from a random place.",
            show_default="16; of a trace, all",
        ),
    ] = None,
    longest_gap: Annotated[
        float | None,
        typer.Option(metavar="S", help="Cut longer gaps to this.", show_default="60; of a trace, none"),
    ] = None,
    kv_events: Annotated[
        bool,
        typer.Option(
            "--kv-events", help="Engines tell what they cache; without it that is inferred from answers."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Equal seeds give equal results.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write the rows as JSON; alone or -: to stdout."),
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="[FILE]", help="Write a page with plots; alone: thunder-simulate.html."
        ),
    ] = None,
) -> None:
    """Compare policies on the same work, in virtual time.

    The scheduler is the server's own; engines are those of thunder emulate. Hours take seconds. Every policy
    serves the same programs until all have ended.

    [bold]Examples[/bold]

      thunder simulate

      thunder simulate --kv-tokens 1000000 --policy passthrough,cap:12,paper,paper:1

      thunder simulate --workload assistant --programs 200 --replicas 4 --signals inferred

      thunder simulate --trace monday.jsonl.gz tuesday.jsonl.gz --json results.json --html page.html
    """
    from thunder_server.simulation.replay import Signals
    from thunder_server.simulation.simulator import Machines
    from thunder_server.simulation.study import Cut, Study
    from thunder_server.simulation.time_model import PRESETS

    if engine not in PRESETS:
        _wrong(f"--engine: there is no preset {engine!r}; there are {' and '.join(PRESETS)}")
    if signals not in list(Signals):
        _wrong(f"--signals: {signals!r} is neither explicit nor inferred")
    if longest_gap is not None and not longest_gap >= 0:  # NaN too
        _wrong(f"--longest-gap: {longest_gap} is no number of seconds")
    contenders = _contenders(policy)
    for path in (json_file, html_file):
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            _wrong(f"there is no folder {path.absolute().parent}")
    preset = PRESETS[engine]
    machines = Machines(preset=preset, replicas=replicas, kv_tokens=kv_tokens or preset.kv_tokens)
    cut = Cut(turns=turns, longest_gap_s=longest_gap)
    study = Study(
        workload=_workload(trace or [], workload, programs, seed, cut, machines),
        machines=machines,
        signals=Signals(signals),
        seed=seed,
        at_a_time=at_a_time,
        kv_events=kv_events,
    )
    raise typer.Exit(_run(study, contenders, json_file, html_file))


def _wrong(message: str) -> NoReturn:
    typer.echo(f"thunder simulate: {message}", err=True)
    raise typer.Exit(2)


def _contenders(names: str | None) -> list[tuple[str, Policy]]:
    from thunder_server.core import POLICIES

    listed = [name.strip() for name in (",".join(POLICIES) if names is None else names).split(",")]
    for name in listed:
        if listed.count(name) > 1:
            _wrong(f"--policy: {name!r} is there twice")
    return [(name, _policy(name)) for name in listed]


def _policy(text: str) -> Policy:
    from thunder_server.core import make_policy, policy_of_text
    from thunder_server.simulation.oracle import Oracle

    name, given, number = text.partition(":")
    try:
        match name, given:
            case "oracle", "":
                return Oracle()
            case _, ":" if number == SHADOW and name not in ("cap", "paper"):
                return make_policy(name)
            case _:
                return policy_of_text(text)
    except ValueError as wrong:
        what = (
            f"{number!r} is no number" if "convert" in str(wrong) or "literal" in str(wrong) else str(wrong)
        )
        _wrong(f"--policy {text!r}: {what}")


def _workload(
    traces: Sequence[Path], name: str | None, programs: int | None, seed: int, cut: object, machines: Machines
) -> Workload:
    from thunder_server.simulation.generated import GENERATORS
    from thunder_server.simulation.jsonlines import TraceError
    from thunder_server.simulation.study import Cut, from_files, generate, packaged

    assert isinstance(cut, Cut)
    if traces and name is not None:
        _wrong("--trace and --workload are two different workloads; give one of them")
    if name is not None and cut != Cut():
        _wrong("--turns and --longest-gap cut recordings; seeded agents are made as they are")
    if traces:
        try:
            return from_files(traces, programs, seed, cut)
        except TraceError as unusable:
            typer.echo(f"thunder simulate: {unusable}", err=True)
            raise typer.Exit(1) from None
    if name is None:
        return packaged(programs, seed, cut, machines)
    if name not in GENERATORS:
        _wrong(f"--workload: there is no {name!r}; there are {', '.join(GENERATORS)}")
    return generate(name, programs, seed, machines)


def _run(
    study: Study, contenders: list[tuple[str, Policy]], json_file: Path | None, html_file: Path | None
) -> int:
    from rich.console import Console
    from rich.text import Text

    from thunder_server.cli import simulate_tables
    from thunder_server.simulation.simulator import Standstill

    to_stdout = str(json_file) == "-"
    console = Console(stderr=to_stdout, highlight=False)
    if not console.is_terminal:
        console.width = 200  # nobody should have to guess what was cut
    console.print(Text(simulate_tables.opening(study)))
    for note in study.workload.notes:
        console.print(Text(note), style="dim")
    results = []
    for name, policy in contenders:
        with console.status(f"{name} …"):
            try:
                results.append(study.run(name, policy, shadow=name.endswith(f":{SHADOW}")))
            except Standstill as never:
                typer.echo(f"thunder simulate: {name} is left out: {never}", err=True)
    if not results:
        return 1
    console.print(simulate_tables.figures(results))
    console.print(simulate_tables.costs(results))
    failed = max(result.details["failed_calls"] for result in results)
    if failed:
        # The same programs for every policy, so that it stays a comparison.
        console.print(
            Text(
                f"{failed} programs gave up at a call that no engine takes: longer than "
                f"{study.machines.longest:,} tokens. They count with what they had done until then."
            ),
            style="yellow",
        )
    try:
        _write(study, results, json_file, html_file)
    except OSError as failure:
        typer.echo(f"thunder simulate: {failure.filename} cannot be written: {failure.strerror}", err=True)
        return 1
    if not any(result.outcome.served for result in results):
        typer.echo(
            "thunder simulate: no call was served; take larger engines (--kv-tokens, --engine)", err=True
        )
        return 1
    return 0


def _write(study: Study, results: Sequence[Result], json_file: Path | None, html_file: Path | None) -> None:
    from thunder_server.cli import simulate_page

    if json_file is not None:
        value = {
            "rows": [result.row for result in results],
            "details": [{"policy": result.row["policy"]} | result.details for result in results],
            "engine": study.machines.preset.name,
            "notes": list(study.workload.notes),
        }
        text = json.dumps(value, indent=1) + "\n"
        if str(json_file) == "-":
            sys.stdout.write(text)
        else:
            json_file.write_text(text, encoding="utf-8")
    if html_file is not None:
        html_file.write_text(simulate_page.page(study, results), encoding="utf-8")
