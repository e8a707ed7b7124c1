"""What the user of ``thunder demo`` sees: progress, the table, the files, and why it failed if it did."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from thunder_server.demo import report, table
from thunder_server.demo.fleet import DemoError
from thunder_server.demo.plan import HUMAN_S, LARGEST_OUTPUT, TOOL_CAP_S
from thunder_server.demo.progress import Lively, Plain
from thunder_server.demo.run import Emulated
from thunder_server.demo.story import Options, Outline, Pair, outline, tell


def show(options: Options, *, json_file: Path | None, html_file: Path) -> int:
    """Run the demo; the exit code: 0, or 1 when it failed or was stopped."""
    to_stdout = json_file is not None and str(json_file) == "-"
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    console = Console(stderr=to_stdout, highlight=False, soft_wrap=True)
    try:
        story, pairs = asyncio.run(_run(options, console))
    except DemoError as failure:
        errors.print(Text(f"thunder demo: {failure}", style="red"))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("thunder demo: stopped; its processes are ended")
        return 1
    for pair in pairs:
        console.print()
        console.print(table.draw(pair))
        console.print(table.verdict(pair), style="bold")
    results = json.dumps(as_json(story, pairs), indent=1) + "\n"
    try:
        html_file.write_text(report.page(story, pairs, footnotes(story)), encoding="utf-8")
        if to_stdout:
            sys.stdout.write(results)
        elif json_file is not None:
            json_file.write_text(results, encoding="utf-8")
    except OSError as failure:
        errors.print(f"thunder demo: {failure.filename} cannot be written: {failure.strerror}", style="red")
        return 1
    console.print(f"\nEvery program, second by second: {html_file}")
    return 0


async def _run(options: Options, console: Console) -> tuple[Outline, list[Pair]]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    story = await outline(options)
    console.print(_opening(story))
    for note in footnotes(story):
        # A terminal breaks between words; a pipe gets whole lines.
        line = Padding(note, (0, 0, 0, 2), style="dim") if console.is_terminal else f"  {note}"
        console.print(line, style="dim", soft_wrap=not console.is_terminal)
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
            f"Contexts, outputs and gaps are shrunk to {100 * story.shrunk:.2g} %, "
            "so that they fit the engines' KV cache."
        )
    return notes


def as_json(story: Outline, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Rows in the order of the runs; times are seconds of this machine's clock."""
    return {
        "rows": [result.row for pair in pairs for result in (pair.baseline, pair.scheduled)],
        "pairs": [{"title": pair.title, "speedup": round(pair.speedup, 3)} for pair in pairs],
        "speed": story.speed,
        "shrunk": round(story.shrunk, 5),
        "notes": footnotes(story),
    }
