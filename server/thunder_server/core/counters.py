"""Totals since the start, for metrics. They only ever rise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from thunder_server.core.decisions import Refusal
from thunder_server.core.events import CallEnd, Outcome
from thunder_server.core.program import TokenTotals
from thunder_server.core.resources import ResourceState


@dataclass(slots=True, kw_only=True)
class Counters:
    """What the scheduler has done so far."""

    programs_opened: int = 0
    programs_ended: Counter[Outcome] = field(default_factory=Counter)
    calls_arrived: int = 0
    calls_dispatched: int = 0  # again after a refused connection
    calls_ended: Counter[CallEnd] = field(default_factory=Counter)  # those that the core did not end itself
    refusals: Counter[Refusal] = field(default_factory=Counter)  # refused or cancelled by the core
    tokens: TokenTotals = field(default_factory=TokenTotals)
    waited_s: float = 0.0  # over all calls dispatched
    queued: int = 0  # newcomers that found no room
    pauses: int = 0  # programs that left a backend for the global queue
    admitted: int = 0  # newcomers that left the global queue for their first backend
    restores: int = 0  # other programs that left it for a backend
    moves: int = 0  # programs placed on another backend than the one before
    marks: int = 0
    touches: int = 0  # contexts used without a call, to keep them cached
    ticks: int = 0  # of the policy
    resources_ended: Counter[ResourceState] = field(default_factory=Counter)  # things, by what became of them
    environments_prepared: int = 0
    environments_failed: int = 0
    prepared_hidden_s: float = 0.0  # of preparing, while nobody waited for it
    prepared_exposed_s: float = 0.0  # while somebody did
