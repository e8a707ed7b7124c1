"""Of ``thunder analyze`` and ``thunder tune``: recorded traffic, and engines to replay it on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from thunder_server.cli.words import Words

if TYPE_CHECKING:
    from thunder_server.simulation.study import Study
    from thunder_server.simulation.traffic import Traffic

QUIET_S, LISTEN_S = 1.0, 10.0
"""A server that says nothing for a second has told what it remembers; a busy one has in a few."""
LONGEST_GAP_S = 60.0
"""Sessions last hours, most of which people sleep: of traces, a part is replayed unless told otherwise."""
CALLS = 20_000
"""More calls than this take minutes to replay and tell nothing new."""


Trace = Annotated[list[Path] | None, typer.Option(metavar="FILE…", help="Another way to name them.")]
Engine = Annotated[
    str, typer.Option(metavar="h100-qwen30b|cpu-small", help="Whose speed and size your engines have.")
]
Replicas = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many engines.")]
KvTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=16, help="KV cache of each engine.", show_default="the preset's"),
]
AtATime = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="So many programs at once; the others follow as these end.",
        show_default="as recorded; of a trace, all at once",
    ),
]
Turns = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Replay so many turns of each program, from a random place.",
        show_default="all; of a trace, some",
    ),
]
LongestGap = Annotated[
    float | None,
    typer.Option(metavar="S", help="Cut longer gaps to this.", show_default="none; of a trace, 60"),
]


class Replaying(Words):
    """``--trace`` takes several files, ``--json`` none or one."""

    several = frozenset({"--trace"})
    optional = {"--json": "-"}  # noqa: RUF012 - declared so by Words


class Complaints:
    """How ``thunder COMMAND`` says what is wrong."""

    def __init__(self, command: str) -> None:
        self._command = command

    def usage(self, message: str) -> NoReturn:
        self.fail(message, 2)

    def fail(self, message: str, code: int = 1) -> NoReturn:
        typer.echo(f"thunder {self._command}: {message}", err=True)
        raise typer.Exit(code)


def read_traffic(files: list[Path], complaints: Complaints) -> Traffic:
    from thunder_server.simulation.jsonlines import TraceError
    from thunder_server.simulation.reading import read

    if not files:
        complaints.usage(
            "name a file: a trace, a capture of a server's /thunder/v1/stream, "
            "or a log of requests and responses"
        )
    if len(set(files)) < len(files):
        complaints.usage("a file is named twice")
    try:
        return read(files)
    except TraceError as unusable:
        complaints.fail(str(unusable))


def ask_server(server: str, key: str | None, complaints: Complaints) -> Traffic:
    """What a running server still remembers of its last calls: the latest entries of its stream."""
    import httpx

    from thunder_sdk import wire
    from thunder_server.simulation.jsonlines import TraceError
    from thunder_server.simulation.reading import captured

    try:
        url = f"{wire.root_url(server)}{wire.CONTROL_PREFIX}/stream"
    except ValueError as wrong:
        complaints.usage(f"--server: {wrong}")
    headers = {"Last-Event-ID": "0"} | ({} if key is None else {wire.API_KEY: key})
    lines: list[str] = []
    until = time.monotonic() + LISTEN_S
    try:
        with (
            httpx.Client(trust_env=False, timeout=httpx.Timeout(10, read=QUIET_S)) as client,
            client.stream("GET", url, headers=headers) as stream,
        ):
            if stream.status_code != 200:
                complaints.fail(f"{url} answers {stream.status_code}: {stream.read().decode()[:200]}")
            for line in stream.iter_lines():
                lines.append(f"{line}\n")
                if time.monotonic() > until:
                    break
    except httpx.ReadTimeout:
        pass  # that was all, for now
    except httpx.HTTPError as failure:
        complaints.fail(f"{url} does not answer: {failure}")
    try:
        return captured(lines, url)
    except TraceError as unusable:
        complaints.fail(str(unusable))


def check_folder(path: Path | None, complaints: Complaints) -> None:
    """Before the work, not after it: can ``--json`` be written there?"""
    if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
        complaints.usage(f"--json: there is no folder {path.absolute().parent}")


def write_json(path: Path, value: object, complaints: Complaints) -> None:
    """To a file, or to standard output where its name is ``-``."""
    text = json.dumps(value, indent=1) + "\n"
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        complaints.fail(f"{path} cannot be written: {failure.strerror}")


def study_of(
    traffic: Traffic,
    name: str,
    *,
    engine: str,
    replicas: int,
    kv_tokens: int | None,
    at_a_time: int | None,
    turns: int | None,
    longest_gap: float | None,
    turns_of_traces: int,
    seed: int,
    complaints: Complaints,
) -> Study:
    """The replay of this traffic on these engines; of a trace, ``turns_of_traces`` if not told otherwise."""
    from thunder_server.simulation.replay import Signals
    from thunder_server.simulation.simulator import Machines
    from thunder_server.simulation.study import Cut, Study, from_traffic
    from thunder_server.simulation.time_model import PRESETS
    from thunder_server.simulation.traffic import Source

    if engine not in PRESETS:
        complaints.usage(f"--engine: there is no preset {engine!r}; there are {' and '.join(PRESETS)}")
    if longest_gap is not None and not longest_gap >= 0:  # NaN too
        complaints.usage(f"--longest-gap: {longest_gap} is no number of seconds")
    if traffic.source is Source.TRACE:
        turns, longest_gap = turns or turns_of_traces, LONGEST_GAP_S if longest_gap is None else longest_gap
    preset = PRESETS[engine]
    cut = Cut(turns=turns, longest_gap_s=longest_gap)
    workload = from_traffic(traffic, name, None, seed, cut).first_calls(CALLS)
    if traffic.source is Source.TRACE:
        workload = workload.noting(
            f"replayed: {turns} turns of each session, gaps of at most {longest_gap:g} s"
        )
    return Study(
        workload=workload,
        machines=Machines(preset=preset, replicas=replicas, kv_tokens=kv_tokens or preset.kv_tokens),
        signals=Signals.EXPLICIT,
        seed=seed,
        at_a_time=at_a_time,
    )
