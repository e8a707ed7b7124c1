"""The terminal while a demo runs: one line a run, and below it every agent as a coloured mark.

Without a terminal, plain lines now and then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thunder_server.demo.records import Called, Closed, Opened, Record, Sending
from thunder_server.demo.run import Run, Task, Watcher

_PLAIN_EVERY_S = 5.0
_ENGINE_STYLES = ("dodger_blue2", "medium_purple2", "dark_cyan", "sky_blue2")


class State(Enum):
    """What an agent is seen to do."""

    REASONING = "reasoning"
    ACTING = "acting"
    WAITING = "waiting"
    DONE = "done"


_MARKS = {State.REASONING: "█", State.ACTING: "▄", State.WAITING: "░", State.DONE: "·"}
_STYLES = {State.REASONING: "blue", State.ACTING: "green", State.WAITING: "yellow", State.DONE: "dim"}


class Score:
    """Where a run is, kept up to date record by record."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.note = ""
        self.steps = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.states: dict[str, State] = {}
        self.places: dict[str, int] = {}
        self.began: float | None = None
        self.took: float | None = None
        self.over = False

    @property
    def elapsed(self) -> float:
        if self.took is not None:
            return self.took
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def hit_rate(self) -> str:
        return f"{100 * self.cached_tokens / self.prompt_tokens:.0f} %" if self.prompt_tokens else ""

    def record(self, record: Record) -> None:
        match record:
            case Opened() | Sending():
                self.took = None
                self.states[record.program] = State.WAITING if isinstance(record, Sending) else State.ACTING
            case Called():
                self.states[record.program] = State.ACTING
                self.steps += 1
                self.prompt_tokens += record.prompt_tokens
                self.cached_tokens += record.cached_tokens or 0
            case Closed():
                self.states[record.program] = State.DONE
                if self.began is not None and self.count(State.DONE) == len(self.states):
                    self.took = time.monotonic() - self.began  # unless another one opens still
            case _:
                pass

    def transition(self, run: Run, transition: Mapping[str, Any]) -> None:
        program = transition.get("program_id")
        if program not in self.states or self.states[program] is State.DONE:
            return
        if transition["type"] == "call.dispatched":
            self.states[program] = State.REASONING
            if transition.get("backend") in run.backends:
                self.places[program] = run.backends.index(transition["backend"])
        elif transition["type"] == "program.paused":
            self.states[program] = State.WAITING
        elif transition["type"] == "program.restored":
            self.states[program] = State.ACTING

    def count(self, state: State) -> int:
        return sum(1 for one in self.states.values() if one is state)


class Plain(Watcher):
    """Progress as lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = 0.0
        self._score: Score | None = None

    def starting(self, task: Task, what: str) -> None:
        if self._score is None or self._score.task is not task:
            self._score = Score(task)
            self._console.print(f"{task.policy}: starting engines, server and {len(task.scripts)} agents")

    def begun(self, run: Run) -> None:
        assert self._score is not None
        self._score.began = self._said_at = time.monotonic()

    def recorded(self, run: Run, record: Record) -> None:
        assert self._score is not None
        self._score.record(record)
        if time.monotonic() - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            self._say()

    def transition(self, run: Run, transition: Mapping[str, Any]) -> None:
        assert self._score is not None
        self._score.transition(run, transition)

    def ended(self, run: Run) -> None:
        assert self._score is not None
        self._score.took = run.ended - run.started
        self._say()
        self._score = None

    def _say(self) -> None:
        score = self._score
        assert score is not None
        counts = ", ".join(f"{score.count(state)} {state.value}" for state in State)
        self._console.print(
            f"{score.task.policy}: {score.steps}/{score.task.calls} steps in {score.elapsed:.1f} s, "
            f"hit rate {score.hit_rate or '-'}; {counts}"
        )


class Lively(Watcher):
    """Progress that redraws itself; a context manager."""

    def __init__(self, console: Console) -> None:
        self._scores: list[Score] = []
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=8)

    def __enter__(self) -> Lively:
        self._live.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._live.stop()

    def starting(self, task: Task, what: str) -> None:
        if not self._scores or self._scores[-1].task is not task:
            self._scores.append(Score(task))
        self._scores[-1].note = f"starting {what} …"

    def begun(self, run: Run) -> None:
        self._scores[-1].note = ""
        self._scores[-1].began = time.monotonic()

    def recorded(self, run: Run, record: Record) -> None:
        self._scores[-1].record(record)

    def transition(self, run: Run, transition: Mapping[str, Any]) -> None:
        self._scores[-1].transition(run, transition)

    def ended(self, run: Run) -> None:
        self._scores[-1].took = run.ended - run.started
        self._scores[-1].over = True

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for score in self._scores:
            done = score.over
            table.add_row(
                Text("✓" if done else "▸", style="green" if done else "bold"),
                Text(f"{score.task.policy}, {len(score.task.scripts)} agents", style="" if done else "bold"),
                ProgressBar(total=score.task.calls, completed=score.steps, width=14),
                Text(f"{score.steps}/{score.task.calls} steps", justify="right"),
                Text(f"{score.elapsed:.1f} s", justify="right"),
                Text(score.note or f"hit rate {score.hit_rate}", style="dim"),
            )
        if not self._scores or self._scores[-1].over:
            return table
        return Group(table, Text(), self._draw_agents(self._scores[-1]), self._legend(self._scores[-1]))

    @staticmethod
    def _draw_agents(score: Score) -> Text:
        line = Text("  ")
        for program, state in score.states.items():
            style = _STYLES[state]
            if state is State.REASONING:
                style = _ENGINE_STYLES[score.places.get(program, 0) % len(_ENGINE_STYLES)]
            line.append(_MARKS[state], style=style)
        return line

    @staticmethod
    def _legend(score: Score) -> Text:
        line = Text("  ")
        for state in State:
            line.append(f"{_MARKS[state]} ", style=_STYLES[state])
            line.append(f"{score.count(state)} {state.value}   ", style="dim")
        return line
