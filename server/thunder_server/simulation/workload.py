"""Recorded agent sessions: what an agent asked of its model, turn by turn, in sizes and times.

A **trace** is a file of JSON lines, one session a line, plain or gzipped::

    {"id": "trace_0492", "models": ["…"], "tool_tokens": 9913, "system_tokens": 557, "block_size": 64,
     "requests": [{"t": 0.0, "in": 10972, "out": 363, "hash_ids": [1, 2, …], "think_time": 0.0,
                   "input_types": ["text"]}, …]}

``in`` and ``out`` are tokens, ``t`` seconds since the session's start, ``think_time`` the client's gap
before the request, ``hash_ids`` the prompt's whole blocks. In place of ``hash_ids`` a request may carry
``shared``: the tokens its prompt has in common with the one before it (the packaged set does, being a
hundred times smaller for it). ``type: subagent`` is a child session with ``requests`` of its own, for which
its parent waits.

**Replay rule.** A turn is sent when the previous answer has come and the turn's gap has passed; child
sessions run inside that gap. ``tool_tokens + system_tokens`` lead every prompt of a model, so its sessions
share them.

What is wrong with a file is said with its name and line (`TraceError`); what is merely odd in a recording (no
prompt, no output, a session that asked nothing) is left out and counted in `Trace.skipped`.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from thunder_server.simulation.jsonlines import Record, TraceError, open_text, records

PACKAGED = "coding-agents.jsonl.gz"
DEFAULT_BLOCK = 64


class Gap(StrEnum):
    """What happened before a turn."""

    START = "start"  # nothing: the session's first turn
    TOOL = "tool"  # a tool ran
    HUMAN = "human"  # a person read, thought and wrote


class Skipped(StrEnum):
    """What a recording holds that cannot be replayed, and is left out."""

    EMPTY_PROMPT = "turn without a prompt"
    EMPTY_OUTPUT = "turn without an output"
    EMPTY_SESSION = "session without turns"
    NO_GAP = "sub-agent before the first turn of its parent, or after the last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session.

    ``prompt_tokens`` is the whole prompt, of which the first ``shared_tokens`` are those of the previous
    prompt (0 for the first); less than the previous prompt means that the client compacted its context.
    ``gap_s`` is the time between the previous answer and this request, without what its ``children`` took.
    """

    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    gap_s: float
    gap: Gap
    children: tuple[Session, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One agent run. The first ``system_tokens`` of every prompt are common to all sessions of ``model``."""

    id: str
    model: str
    system_tokens: int
    turns: tuple[Turn, ...]

    @property
    def calls(self) -> int:
        """Turns, those of child sessions too."""
        return sum(1 + sum(child.calls for child in turn.children) for turn in self.turns)

    def window(self, start: int, length: int) -> Session:
        """``length`` consecutive turns from ``start`` on, as a session that begins with that context.

        >>> turns = tuple(
        ...     Turn(prompt_tokens=100 * k, output_tokens=5, shared_tokens=90 * k, gap_s=1.0, gap=Gap.TOOL)
        ...     for k in (1, 2, 3)
        ... )
        >>> session = Session(id="s", model="m", system_tokens=50, turns=turns).window(1, 2)
        >>> [(turn.prompt_tokens, turn.shared_tokens, turn.gap.value) for turn in session.turns]
        [(200, 0, 'start'), (300, 270, 'tool')]
        """
        first, *rest = self.turns[start : start + length]
        opening = Turn(
            prompt_tokens=first.prompt_tokens,
            output_tokens=first.output_tokens,
            shared_tokens=0,
            gap_s=0.0,
            gap=Gap.START,
        )
        return Session(id=self.id, model=self.model, system_tokens=self.system_tokens, turns=(opening, *rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The sessions of a file, in its order, with a count of what was left out and why."""

    sessions: tuple[Session, ...]
    skipped: Mapping[Skipped, int] = field(default_factory=dict)


def recorded() -> Trace:
    """The set inside the package: 96 coding-agent sessions (``data/README.md`` says from where)."""
    path = files("thunder_server.simulation") / "data" / PACKAGED
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
        return read(records(lines, PACKAGED), PACKAGED)


def load(path: str | Path) -> Trace:
    """Read a trace file, plain or gzipped. Raises `TraceError` naming the file and the line."""
    with open_text(Path(path)) as lines:
        return read(records(lines, str(path)), str(path))


def read(sessions_of_file: Iterable[Record], name: str) -> Trace:
    """The sessions that these records of the file ``name`` describe."""
    skipped: Counter[Skipped] = Counter()
    sessions: list[Session] = []
    seen: dict[str, str] = {}
    for record in sessions_of_file:
        session_id = record.text("id")
        if session_id in seen:
            raise TraceError(f"{record.where}: id {session_id!r} was used on {seen[session_id]} already")
        seen[session_id] = record.where.removeprefix(f"{name}, ")
        session = _session(record, session_id, skipped)
        if session is not None:
            sessions.append(session)
    if not sessions:
        left_out = ", ".join(f"{number} × {kind}" for kind, number in sorted(skipped.items()))
        raise TraceError(
            f"{name}: holds no session that can be replayed"
            + (f" (left out: {left_out})" if left_out else "")
        )
    return Trace(sessions=tuple(sessions), skipped=dict(skipped))


def _model(record: Record, otherwise: str) -> str:
    names = record.items("models") if "models" in record else []
    if not names:
        return otherwise
    if not isinstance(names[0], str):
        raise record.wrong("models", f"must be names, not {names[0]!r}")
    return names[0]


def _session(
    record: Record, session_id: str, skipped: Counter[Skipped], parent_model: str = "unknown"
) -> Session | None:
    model = _model(record, parent_model)
    block = record.tokens("block_size", DEFAULT_BLOCK)
    if not block:
        raise record.wrong("block_size", "must be at least 1")
    turns: list[Turn] = []
    children: list[Session] = []
    child_s = 0.0  # how long the longest of them took
    previous = _Previous()
    for index, request in enumerate(record.records("requests", "request")):
        if request.fields.get("type") == "subagent":
            child_id = f"{session_id}.{request.text('agent_id', str(index))}"
            child = _session(request, child_id, skipped, model)
            if child is not None:
                children.append(child)
                child_s = max(child_s, request.seconds("duration_ms", 0.0) / 1000)
            continue
        turn = _turn(request, previous, block, first=not turns, child_s=child_s, children=tuple(children))
        odd = (
            Skipped.EMPTY_PROMPT
            if turn.prompt_tokens == 0
            else Skipped.EMPTY_OUTPUT
            if turn.output_tokens == 0
            else None
        )
        if odd is not None:
            skipped[odd] += 1
            continue
        if children and not turns:
            skipped[Skipped.NO_GAP] += len(children)
        turns.append(turn)
        previous.remember(request)
        children, child_s = [], 0.0
    if children:
        skipped[Skipped.NO_GAP] += len(children)
    if not turns:
        skipped[Skipped.EMPTY_SESSION] += 1
        return None
    system = record.tokens("tool_tokens", 0) + record.tokens("system_tokens", 0)
    return Session(
        id=session_id,
        model=model,
        system_tokens=min(system, min(turn.prompt_tokens for turn in turns)),
        turns=tuple(turns),
    )


@dataclass(slots=True)
class _Previous:
    """The turn before: what the next one can share, and when its answer had come."""

    prompt_tokens: int = 0
    blocks: Sequence[object] = ()
    sent_s: float = 0.0
    answered_s: float = 0.0

    def remember(self, request: Record) -> None:
        self.prompt_tokens = request.tokens("in")
        self.blocks = request.items("hash_ids") if "hash_ids" in request else ()
        self.sent_s = request.seconds("t", self.answered_s)
        self.answered_s = self.sent_s + request.seconds("api_time", 0.0)


def _turn(
    request: Record,
    previous: _Previous,
    block: int,
    *,
    first: bool,
    child_s: float,
    children: tuple[Session, ...],
) -> Turn:
    prompt = request.tokens("in")
    sent = request.seconds("t", previous.answered_s)
    if sent < previous.sent_s:
        raise request.wrong("t", f"goes back in time ({sent} after {previous.sent_s})")
    if "shared" in request:
        shared = request.tokens("shared")
        if shared > min(prompt, previous.prompt_tokens):
            raise request.wrong("shared", f"is {shared}, more than this prompt or the one before holds")
    elif "hash_ids" in request:
        shared = min(block * _common(previous.blocks, request.items("hash_ids")), prompt)
    else:
        raise request.wrong("hash_ids", "is missing (or, in its place, 'shared')")
    if not first and "think_time" not in request and "t" not in request:
        raise request.wrong("think_time", "is missing (or, in its place, 't')")
    gap_s = request.seconds("think_time", max(0.0, sent - previous.answered_s))
    tool_ran = "input_types" in request and "tool_result" in request.items("input_types")
    return Turn(
        prompt_tokens=prompt,
        output_tokens=request.tokens("out"),
        shared_tokens=0 if first else shared,
        gap_s=0.0 if first else max(0.0, gap_s - child_s),
        gap=Gap.START if first else Gap.TOOL if tool_ran or children else Gap.HUMAN,
        children=() if first else children,
    )


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading blocks two prompts share."""
    if one == other[: len(one)]:  # nearly always: the context only grew
        return len(one)
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
