"""What each agent of the demo will do: a stretch of a recorded session, fitted to the engines.

Nothing is invented: prompt sizes, how much of each prompt the one before it held, output sizes and gaps are
those of the recording. What is changed, is changed by five rules, the same for every policy:

* an agent replays `Shape.turns` consecutive turns, not the hours of the whole session, from a place where its
  context is within `Shape.smallest` and `Shape.largest` (and where it has a sub-agent, if it ever has one;
  sub-agents replay a quarter as many turns);
* outputs are capped at `LARGEST_OUTPUT`: one turn that writes for minutes would alone decide when a run ends;
* gaps are capped at `TOOL_CAP_S`, and a person's at `HUMAN_S`: these agents run unattended;
* for emulated engines that run faster than life, gaps are shortened by the same factor;
* for engines with less memory than the recording needs, contexts, outputs and gaps shrink by one factor, so
  that prefilling, generating and acting keep about their proportions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from thunder_server.simulation.workload import Gap, Session, Turn

TOOL_CAP_S = 5.0
HUMAN_S = 1.0
LARGEST_OUTPUT = 1000
_SMALLEST_PROMPT = 64
_SMALLEST_OUTPUT = 16
_TOOLS = ("bash", "edit", "read", "grep", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call and the acting before it.

    ``prompt_tokens`` is the whole prompt, ``kept_tokens`` how much of the previous one it begins with (all of
    it, unless the agent compacts its context). ``gap_s`` are real seconds in ``tool``; ``children`` run
    meanwhile.
    """

    prompt_tokens: int
    kept_tokens: int
    output_tokens: int
    gap_s: float
    tool: str
    children: tuple[Script, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One agent. Scripts of one ``family`` begin with the same ``system_tokens``."""

    name: str
    family: str
    system_tokens: int
    steps: tuple[Step, ...]

    @property
    def calls(self) -> int:
        """Calls of this agent and of all its sub-agents."""
        return sum(1 + sum(child.calls for child in step.children) for step in self.steps)

    @property
    def mean_context(self) -> float:
        """Tokens of its prompt and output, averaged over its steps."""
        return sum(step.prompt_tokens + step.output_tokens for step in self.steps) / len(self.steps)

    @property
    def largest_context(self) -> int:
        return max(step.prompt_tokens + step.output_tokens for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Script:
        steps = (
            Step(**step | {"children": tuple(cls.from_json(child) for child in step["children"])})
            for step in value["steps"]
        )
        return cls(**value | {"steps": tuple(steps)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much of a recording an agent replays: how many turns, within which contexts (tokens)."""

    turns: int
    smallest: int = 60_000
    largest: int = 140_000


def write_scripts(
    sessions: Sequence[Session], agents: int, shape: Shape, *, speed: float
) -> tuple[Script, ...]:
    """Scripts for ``agents`` agents at the recording's own sizes.

    Every session gives one stretch before any gives a second. Where there are more agents than stretches,
    they are used again; their agents write different text all the same.
    """
    stretches = list(_stretches(sessions, shape))
    if not stretches:
        raise ValueError(
            f"no session has {shape.turns} turns in a row between {shape.smallest} and {shape.largest} tokens"
        )
    return tuple(
        _script(stretches[index % len(stretches)], f"-{index}", shape, speed=speed) for index in range(agents)
    )


def _stretches(sessions: Sequence[Session], shape: Shape) -> Iterator[Session]:
    left = [(session, _starts(session, shape)) for session in sessions]
    while left:
        once_more = []
        for session, starts in left:
            if starts:
                yield session.window(starts[0], shape.turns)
                once_more.append((session, starts[1:]))
        left = once_more


def _starts(session: Session, shape: Shape) -> list[int]:
    """Where stretches that fit the shape begin, none overlapping another, those with sub-agents first."""
    fitting = [
        start
        for start in range(len(session.turns) - shape.turns + 1)
        if session.turns[start].prompt_tokens >= shape.smallest
        and all(_fits(turn, shape) for turn in session.turns[start : start + shape.turns])
    ]
    fitting.sort(key=lambda start: not _has_children(session.turns[start + 1 : start + shape.turns]))
    chosen: list[int] = []
    for start in fitting:
        if all(abs(start - other) >= shape.turns for other in chosen):
            chosen.append(start)
    return chosen


def _has_children(turns: Iterable[Turn]) -> bool:
    return any(turn.children for turn in turns)


def _fits(turn: Turn, shape: Shape) -> bool:
    return turn.prompt_tokens <= shape.largest


def _script(session: Session, suffix: str, shape: Shape, *, speed: float) -> Script:
    return Script(
        name=session.id + suffix,
        family=session.model,
        system_tokens=session.system_tokens,
        steps=tuple(_step(turn, number, shape, speed=speed) for number, turn in enumerate(session.turns)),
    )


def _step(turn: Turn, number: int, shape: Shape, *, speed: float) -> Step:
    gap_s = min(turn.gap_s, HUMAN_S if turn.gap is Gap.HUMAN else TOOL_CAP_S)
    children = (child.window(0, max(1, shape.turns // 4)) for child in turn.children)
    return Step(
        prompt_tokens=turn.prompt_tokens,
        kept_tokens=turn.shared_tokens,
        output_tokens=min(turn.output_tokens, LARGEST_OUTPUT),
        gap_s=gap_s / speed,
        tool="task" if turn.children else "person" if turn.gap is Gap.HUMAN else _TOOLS[number % len(_TOOLS)],
        children=tuple(_script(child, "", shape, speed=speed) for child in children),
    )


def shrink(scripts: Iterable[Script], factor: float) -> tuple[Script, ...]:
    """The same scripts with contexts, outputs and gaps times ``factor``, for engines with less memory."""
    return tuple(
        replace(
            script,
            system_tokens=round(script.system_tokens * factor),
            steps=tuple(_shrink(step, factor) for step in script.steps),
        )
        for script in scripts
    )


def _shrink(step: Step, factor: float) -> Step:
    return replace(
        step,
        prompt_tokens=max(_SMALLEST_PROMPT, round(step.prompt_tokens * factor)),
        kept_tokens=round(step.kept_tokens * factor),
        gap_s=step.gap_s * factor,
        output_tokens=min(step.output_tokens, max(_SMALLEST_OUTPUT, round(step.output_tokens * factor))),
        children=shrink(step.children, factor),
    )


def total_context(scripts: Iterable[Script]) -> float:
    """Tokens that all these agents together want to keep in memory, on average."""
    return sum(script.mean_context for script in scripts)
