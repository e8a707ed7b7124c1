"""``thunder tune``: settings for this traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    check_folder,
    read_traffic,
    study_of,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from thunder_server.simulation.tuning import Trial, Tuned

TUNABLE = ("phase", "paper", "cap")
TURNS = 8  # of dozens of replays, each may be shorter than the few of thunder analyze
CHECKS = 2
"""So many other seeds have to agree."""


def register(app: typer.Typer) -> None:
    app.command("tune", cls=Replaying)(tune)


def tune(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…",
            help="Recorded traffic, of any kind that thunder analyze reads.",
            show_default=False,
        ),
    ] = None,
    trace: Trace = None,
    policy: Annotated[
        str, typer.Option(metavar="LIST", help="Policies to tune, separated by commas.")
    ] = "phase,paper,cap",
    signals: Annotated[
        str,
        typer.Option(
            metavar="explicit|inferred", help="Whether your clients tell what they do, or only call."
        ),
    ] = "explicit",
    engine: Engine = "h100-qwen30b",
    replicas: Replicas = 2,
    kv_tokens: KvTokens = None,
    at_a_time: AtATime = None,
    turns: Turns = None,
    longest_gap: LongestGap = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The seed to tune on; the two after it check.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write all trials as JSON; alone or -: to stdout."),
    ] = None,
) -> None:
    """Find settings for this traffic, and say what each of them changes.

    Replays the traffic on simulated engines and turns one knob after another: Δt, decay and watermarks of
    the paper's policy, the number of cap, the router's weights, the lease of silent programs. A setting is
    kept only if it helps in other seeds as well. Tables go to standard error; a TOML fragment for thunder
    serve --config goes to standard output.

    [bold]Examples[/bold]

      thunder tune sessions.jsonl.gz --kv-tokens 700000 > thunder.toml

      thunder serve --config thunder.toml --backend http://127.0.0.1:8000

      thunder tune monday --signals inferred --policy phase,paper --json trials.json
    """
    from dataclasses import replace

    from rich.console import Console

    from thunder_server.simulation.replay import Signals
    from thunder_server.simulation.simulator import Standstill
    from thunder_server.simulation.tuning import Tuner

    complaints = Complaints("tune")
    named = [*(files or []), *(trace or [])]
    policies = [name.strip() for name in policy.split(",")]
    if not set(policies) <= set(TUNABLE) or len(set(policies)) < len(policies):
        complaints.usage(f"--policy: some of {', '.join(TUNABLE)}, each once, not {policy!r}")
    if signals not in list(Signals):
        complaints.usage(f"--signals: {signals!r} is neither explicit nor inferred")
    to_stdout = str(json_file) == "-"
    check_folder(json_file, complaints)
    traffic = read_traffic(named, complaints)
    studies = [
        replace(
            study_of(
                traffic,
                "+".join(path.name for path in named),
                engine=engine,
                replicas=replicas,
                kv_tokens=kv_tokens,
                at_a_time=at_a_time,
                turns=turns,
                longest_gap=longest_gap,
                turns_of_traces=TURNS,
                seed=seed + number,
                complaints=complaints,
            ),
            signals=Signals(signals),
        )
        for number in range(1 + CHECKS)
    ]
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = 200
    with console.status("replaying …") as status:
        tuner = Tuner(studies, timed=bool(traffic.calls), telling=lambda what: status.update(f"{what} …"))
        try:
            tuned = tuner.tune(policies)
        except Standstill as never:
            complaints.fail(str(never))
    if not any(trial.row["steps_per_min"] for trial in tuned.trials):
        complaints.fail("no call fits into these engines; take larger ones (--kv-tokens, --engine)")
    for note in studies[0].workload.notes:
        console.print(note, style="dim", markup=False)
    console.print(_table(tuned))
    for line in _best(tuned):
        console.print(line, markup=False)
    if json_file is not None:
        write_json(json_file, tuned.to_json(), complaints)
    if not to_stdout:
        typer.echo(_toml(tuned))


def _table(tuned: Tuned) -> Table:
    from rich import box
    from rich.table import Table

    from thunder_server.cli.tables import seconds

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("policy", "setting"):
        table.add_column(heading, no_wrap=True)
    for heading in ("as fast", "elsewhere", "hit %", "wait p99", "pauses"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for trial in tuned.trials:
        row = trial.row
        table.add_row(
            trial.policy,
            _settings(trial.changed) or trial.about,
            f"{trial.gain:.2f}",
            "" if trial.checked is None else f"{trial.checked:.2f}",
            "" if row["hit_rate"] is None else f"{100 * row['hit_rate']:.1f}",
            seconds(row["wait_s"]["p99"]),
            f"{row['pauses']:,}",
            "kept" if trial.kept else "",
        )
    return table


def _best(tuned: Tuned) -> list[str]:
    first = tuned.setups[0]["policy"]
    lines = []
    for setup, gain in zip(tuned.setups, tuned.gains, strict=True):
        turned = _settings({key: value for key, value in setup.items() if key != "policy"})
        lines.append(
            f"{setup['policy']} at its best ({turned or 'as it comes'}): {gain:.2f} × {first} as it comes"
        )
    return lines


def _settings(setup: Mapping[str, Any]) -> str:
    from thunder_server.simulation.tuning import written

    return ", ".join(f"{key} = {written(value)}" for key, value in setup.items())


def _toml(tuned: Tuned) -> str:
    """The winner, each setting with what it was worth."""
    from thunder_server.simulation.tuning import fragment

    winner = tuned.winner
    comments: dict[str, str] = {}
    for trial in tuned.trials:
        if trial.kept and trial.policy == winner["policy"]:
            comments |= dict.fromkeys(trial.changed, _worth(trial))
    return fragment(winner, comments)


def _worth(trial: Trial) -> str:
    return f"{trial.about}: {trial.gain:.2f} times as fast, {trial.checked:.2f} in other seeds"
