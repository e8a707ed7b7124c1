"""What ``thunder analyze`` says in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from thunder_server.cli.tables import seconds, tokens
from thunder_server.simulation.study import Study
from thunder_server.simulation.worth import Verdict, WorkingSet, Worth

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60
_STYLES = {Verdict.WORTH_IT: "bold green", Verdict.MAYBE: "bold yellow", Verdict.DO_NOT_BOTHER: "bold red"}


def show(console: Console, study: Study, worth: Worth) -> None:
    """Facts first, the verdict last, where the eye ends."""
    if not console.is_terminal:
        console.width = 200
    machines = study.machines
    explicit, inferred = worth.explicit, worth.inferred
    told = "" if worth.hit_rate is None else f"; engines found {worth.hit_rate:.1%} in their caches"
    for label, text in (
        ("traffic", f"{worth.programs:,} programs, {worth.calls:,} calls ({worth.source})"),
        ("tokens", f"{tokens(worth.prompt_tokens)} in prompts, {tokens(worth.output_tokens)} in answers"),
        (
            "gaps",
            f"p50 {seconds(worth.gap_s['p50'])}, p95 {seconds(worth.gap_s['p95'])} between answer and call",
        ),
        ("repeats", f"{worth.repeat_rate:.1%} of prompt tokens had been in a prompt before{told}"),
        (
            "engines",
            f"{machines.replicas} × {machines.preset.about}, {tokens(machines.kv_tokens)} KV tokens each",
        ),
        ("in play", _share(worth.working_set, worth.kv_tokens)),
        ("over time", _curve(worth.working_set, worth.kv_tokens)),
        (
            "replayed",
            f"{explicit.makespan:.2f} times as fast, a program {explicit.program:.2f} times; "
            f"with inferred signals {inferred.makespan:.2f} and {inferred.program:.2f}",
        ),
    ):
        console.print(Text(f"{label:<10}", style="bold") + Text(text))
    for note in worth.notes:
        console.print(Text(f"{'':<10}{note}", style="dim"))
    console.print()
    console.print(Text(f"{worth.verdict.value}: ", style=_STYLES[worth.verdict]) + Text(f"{worth.reason}."))


def _share(working_set: WorkingSet, kv_tokens: int) -> str:
    parts = (("mean", working_set.mean), ("p95", working_set.p95), ("peak", working_set.peak))
    return ", ".join(f"{name} {tokens(round(size))} ({size / kv_tokens:.2f} × KV)" for name, size in parts)


def _curve(working_set: WorkingSet, kv_tokens: int) -> str:
    """The working set as a row of bars: a full one is all of the memory, or the peak where that is more."""
    points = working_set.over_time
    if not points:
        return ""
    top = max(kv_tokens, working_set.peak)
    step = max(1, -(-len(points) // _WIDTH))
    levels = [max(size for _, size in points[at : at + step]) for at in range(0, len(points), step)]
    bars = "".join(_BARS[-(-level * (len(_BARS) - 1) // top)] for level in levels)
    whole = points[-1][0] * len(points) / max(1, len(points) - 1)
    return f"{bars}  0 to {seconds(whole)}, █ = {top / kv_tokens:.2f} × KV"
