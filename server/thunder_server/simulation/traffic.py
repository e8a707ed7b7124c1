"""Traffic: what agents asked of their models, as it was recorded somewhere, ready to be replayed.

It comes from traces (`workload`), from captures of a server's event stream (`capture`) and from logs of
requests and responses (`request_log`). The latter two know single calls; here they become sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.simulation.simulator import Start
from thunder_server.simulation.workload import Gap, Session, Turn


class Source(StrEnum):
    """Where traffic was recorded."""

    TRACE = "trace"
    STREAM = "event stream"
    LOG = "request log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One answered call. Times are Unix seconds; ``shared_tokens`` its prompt has in common with the call
    before it of the same program; ``cached_tokens`` are those that the engine found, ``None`` if it does not
    say.
    """

    at: float
    ended: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    shared_tokens: int = 0
    gap: Gap = Gap.TOOL  # before the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Programs with the time at which they began, counted from the first.

    ``calls`` are those that were recorded, by program; none in a trace, which knows of no time that its
    sessions share, so that all of them begin at once. ``repeated_tokens`` are the prompt tokens that some
    prompt before had begun with too, where the source knows more than the sessions do. ``skipped`` counts
    what was left out, by its kind; ``notes`` are for the reader.
    """

    source: Source
    starts: tuple[Start, ...]
    calls: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    repeated_tokens: int | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def hit_rate(self) -> float | None:
        """What engines found in their caches, over the calls of which they say so."""
        told = [call for calls in self.calls.values() for call in calls if call.cached_tokens is not None]
        if not told:
            return None
        return sum(call.cached_tokens or 0 for call in told) / sum(call.prompt_tokens for call in told)


def to_session(program: str, family: str, system_tokens: int, calls: Sequence[Call]) -> Session:
    """A program's calls, in order, as a session. Calls that overlapped follow each other at once.

    >>> calls = [
    ...     Call(at=0, ended=2, prompt_tokens=90, output_tokens=9, cached_tokens=None),
    ...     Call(at=5, ended=6, prompt_tokens=120, output_tokens=9, cached_tokens=None),
    ... ]
    >>> [(turn.gap_s, turn.gap.value) for turn in to_session("p", "m", 0, calls).turns]
    [(0.0, 'start'), (3.0, 'tool')]
    """
    turns: list[Turn] = []
    answered = calls[0].at
    for number, call in enumerate(calls):
        turns.append(
            Turn(
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                shared_tokens=call.shared_tokens if number else 0,
                gap_s=float(max(0.0, call.at - answered)) if number else 0.0,
                gap=call.gap if number else Gap.START,
            )
        )
        answered = max(answered, call.ended)
    smallest = min(call.prompt_tokens for call in calls)
    return Session(id=program, model=family, system_tokens=min(system_tokens, smallest), turns=tuple(turns))


def to_starts(programs: Iterable[tuple[str, str, int, Sequence[Call]]]) -> tuple[Start, ...]:
    """Programs, each given by the arguments of `to_session`, in the order in which they began."""
    ordered = sorted(programs, key=lambda program: program[3][0].at)
    return tuple(
        Start(session=to_session(name, family, system_tokens, calls), at=calls[0].at - ordered[0][3][0].at)
        for name, family, system_tokens, calls in ordered
    )
