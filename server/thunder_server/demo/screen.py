"""What the user of ``thunder demo`` sees: progress, the table, the files, and why it failed if it did."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thunder_server.demo import report
from thunder_server.demo.fleet import DemoError
from thunder_server.demo.plan import HUMAN_S, LARGEST_OUTPUT, TOOL_CAP_S
from thunder_server.demo.progress import Lively, Plain
from thunder_server.demo.run import Emulated
from thunder_server.demo.story import Options, Outline, Pair, outline, tell


def show(options: Options, *, json_file: Path | None, html_file: Path) -> int:
    """Run the demo; the exit code: 0, or 1 when it failed or was stopped."""
    to_stdout = json_file is not None and str(json_file) == "-"
    console = Console(stderr=to_stdout, highlight=False)
    try:
        story, pairs = asyncio.run(_run(options, console))
    except DemoError as failure:
        console.print(Text(f"thunder demo: {failure}", style="red"))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("thunder demo: stopped; its processes are ended")
        return 1
    for pair in pairs:
        console.print(_table(pair))
    console.print(verdict(pairs), style="bold")
    html_file.write_text(report.page(story, pairs, footnotes(story)), encoding="utf-8")
    console.print(f"\nEvery program, second by second: {html_file}")
    if json_file is not None:
        results = json.dumps(as_json(story, pairs), indent=1)
        if to_stdout:
            sys.stdout.write(results + "\n")
        else:
            json_file.write_text(results + "\n", encoding="utf-8")
    return 0


async def _run(options: Options, console: Console) -> tuple[Outline, list[Pair]]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    story = await outline(options)
    console.print(_opening(story))
    for note in footnotes(story):
        console.print(f"  {note}", style="dim")
    console.print()
    if not console.is_terminal:
        return story, await tell(story, Plain(console))
    with Lively(console) as watcher:
        return story, await tell(story, watcher)


def _opening(story: Outline) -> Text:
    agents = max(len(scripts) for _, scripts in story.chapters)
    engines = story.engines
    kind = "emulated engines" if isinstance(engines, Emulated) else "engines"
    return Text(
        f"{agents} agents on {engines.replicas} {kind} with {engines.kv_tokens:,} tokens of KV cache each",
        style="bold",
    )


def footnotes(story: Outline) -> list[str]:
    """What is real and what is not, in plain words."""
    engines = story.engines
    notes = [
        "The agents replay stretches of recorded coding sessions (callanjfox/kv-cache-tester, Apache-2.0): "
        "prompt, output and prefix sizes and gaps are the recording's.",
        f"Gaps are capped at {TOOL_CAP_S:g} s, a person's at {HUMAN_S:g} s; "
        f"outputs at {LARGEST_OUTPUT} tokens.",
    ]
    if isinstance(engines, Emulated):
        notes.append(
            f"The engines are emulated, Qwen3-Coder-30B on two H100 each, and {engines.speed:g} times faster "
            "than life; so are the gaps. Every run starts them afresh."
        )
    else:
        notes.append("Runs share no prefixes: every run's prompts begin with words of their own.")
    if story.shrunk < 1:
        notes.append(
            f"Contexts and outputs are shrunk to {100 * story.shrunk:.2g} % to fit the engines' KV cache."
        )
    return notes


_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], object], str], ...] = (
    ("makespan", lambda row: row["makespan_s"], "{:,.1f} s"),
    ("steps/min", lambda row: row["steps_per_min"], "{:,.0f}"),
    ("output tokens/s", lambda row: row["output_tokens_per_s"], "{:,.0f}"),
    ("cache hit rate", lambda row: None if row["hit_rate"] is None else 100 * row["hit_rate"], "{:.1f} %"),
    ("tokens prefilled again", lambda row: row["recomputed_tokens"], "{:,}"),
    ("wait p50", lambda row: row["wait_s"]["p50"], "{:.2f} s"),
    ("wait p99", lambda row: row["wait_s"]["p99"], "{:.2f} s"),
    ("pauses", lambda row: row["pauses"], "{:,}"),
    ("working set ÷ KV cache", lambda row: row["working_set"], "{:.2f}"),
)


def figures(pair: Pair) -> list[tuple[str, str, str]]:
    """The rows of the table: what, without, with."""

    def say(value: object, how: str) -> str:
        return "unknown" if value is None else how.format(value)

    return [
        (name, say(read(pair.baseline.row), how), say(read(pair.scheduled.row), how))
        for name, read, how in _ROWS
    ]


def _table(pair: Pair) -> Table:
    table = Table(title=pair.title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column(pair.baseline.run.task.policy, justify="right")
    table.add_column(pair.scheduled.run.task.policy, justify="right", style="bold")
    for name, without, scheduled in figures(pair):
        table.add_row(name, without, scheduled)
    return table


def verdict(pairs: Sequence[Pair]) -> str:
    return "\n".join(f"{pair.title}: {pair.speedup:.2f} × as fast with the scheduler" for pair in pairs)


def as_json(story: Outline, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Rows in the order of the runs; times are seconds of this machine's clock."""
    return {
        "rows": [result.row for pair in pairs for result in (pair.baseline, pair.scheduled)],
        "pairs": [{"title": pair.title, "speedup": round(pair.speedup, 3)} for pair in pairs],
        "speed": story.speed,
        "shrunk": round(story.shrunk, 5),
        "notes": footnotes(story),
    }
