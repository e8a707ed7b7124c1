"""A program: one agent run, the unit of scheduling.

Where it stands is one ``State``; every step between states is in ``TRANSITIONS``, and a step that is not
there raises ``IllegalTransition`` with the program's story. The phase is not part of it: a program is
reasoning if and only if it has a live call.

Tokens are never one mutable number. A program has a logical ``context`` (what its next prompt begins with,
wherever it will run) and a ``resident`` part of it (what the backend it is placed on holds); what its live
calls add is derived from the calls, so that every way a call can end settles it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from thunder_server.core.call import Call
from thunder_server.core.durations import Durations
from thunder_server.core.environment import Environment
from thunder_server.core.events import Outcome
from thunder_server.core.prefix import Prompt

STORY_LENGTH = 32
"""How many of the latest decisions about a program are kept for ``why``."""

ACTING_BLOCKS = 256
"""How many open acting blocks are kept; of a client that never ends them, the oldest give way."""


class Phase(StrEnum):
    REASONING = "reasoning"  # a call is waiting or running
    ACTING = "acting"  # else


class Status(StrEnum):
    """What users see of a state."""

    ACTIVE = "active"
    PAUSED = "paused"
    TERMINATED = "terminated"


class State(StrEnum):
    UNPLACED = "unplaced"  # no backend yet, or its backend is gone; waits for nothing
    PLACED = "placed"  # on a backend: its calls are dispatched at once
    MARKED = "marked"  # still running there, paused when its last running call ends
    QUEUED = "queued"  # in the global queue; its KV counts as lost
    ENDED = "ended"

    @property
    def status(self) -> Status:
        return _STATUS[self]


_STATUS = {
    State.UNPLACED: Status.ACTIVE,
    State.PLACED: Status.ACTIVE,
    State.MARKED: Status.ACTIVE,
    State.QUEUED: Status.PAUSED,
    State.ENDED: Status.TERMINATED,
}


class Step(Enum):
    PLACE = auto()  # given room on a backend
    MARK = auto()  # chosen to leave, but running
    LIFT = auto()  # no longer chosen
    PAUSE = auto()  # into the global queue
    UNPLACE = auto()  # the backend is gone, draining, or does not serve the model
    END = auto()


TRANSITIONS: Mapping[tuple[State, Step], State] = {
    (State.UNPLACED, Step.PLACE): State.PLACED,
    (State.UNPLACED, Step.PAUSE): State.QUEUED,
    (State.UNPLACED, Step.END): State.ENDED,
    (State.PLACED, Step.MARK): State.MARKED,
    (State.PLACED, Step.PAUSE): State.QUEUED,
    (State.PLACED, Step.UNPLACE): State.UNPLACED,
    (State.PLACED, Step.END): State.ENDED,
    (State.MARKED, Step.LIFT): State.PLACED,
    (State.MARKED, Step.PAUSE): State.QUEUED,
    (State.MARKED, Step.UNPLACE): State.UNPLACED,
    (State.MARKED, Step.END): State.ENDED,
    (State.QUEUED, Step.PLACE): State.PLACED,
    (State.QUEUED, Step.END): State.ENDED,
}


class Chapter(NamedTuple):
    """One decision about a program, in plain words."""

    at: float
    decision: str
    reason: str


class IllegalTransition(RuntimeError):
    """A step that the table does not allow: a bug in the scheduler, told with all that led to it."""

    def __init__(self, program: Program, step: Step) -> None:
        story = "".join(f"\n  {at:.3f} {decision}: {reason}" for at, decision, reason in program.story)
        super().__init__(
            f"program {program.id} (generation {program.generation}) is {program.state.value}, "
            f"from where there is no {step.name}; its story:{story or ' none'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """An open acting block."""

    tool: str
    started_at: float
    expected_s: float | None
    usual: Durations = field(default_factory=Durations)  # of this tool, shared by all who use it


@dataclass(slots=True, kw_only=True)
class CallTotals:
    """Calls of a program, or of all; a superseded first attempt counts nowhere."""

    total: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True, kw_only=True)
class TokenTotals:
    """Sums of the engines' usage over calls."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


@dataclass(slots=True, kw_only=True)
class Size:
    """What is known about how big the next prompt is (see ``sizing``)."""

    prompt_tokens: int = 0
    prompt_chars: int = 0
    tokens_per_char: float | None = None


@dataclass(slots=True, weakref_slot=True, eq=False, kw_only=True)
class Program:
    """One generation of a program id."""

    id: str
    generation: int
    opened_at: float
    lease_s: float
    began_at: float = 0.0  # at the client, whose reports travel in the background
    anonymous: bool = False
    previous: Program | None = None  # the generation before, while its calls still run

    name: str | None = None
    parent_id: str | None = None
    parent: Program | None = None  # as far as it is known
    children: dict[Program, None] = field(default_factory=dict)  # that have not ended
    straggles: bool = False  # nearly all others of its group have ended
    group: str | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    expected_context_tokens: int | None = None
    model: str | None = None  # of the latest call
    max_wait_s: float | None = None

    state: State = State.UNPLACED
    phase: Phase = Phase.ACTING
    reason: str = "opened"
    story: deque[Chapter] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    ending: Outcome | None = None  # how it will have ended once its calls are through
    outcome: Outcome | None = None
    ended_at: float | None = None

    backend_id: str | None = None
    last_backend_id: str | None = None
    acting_since: float = 0.0  # when the last call ended
    touched_at: float = 0.0  # when its context was last used for no other reason than to keep it
    queued_at: float | None = None
    placed_at: float = 0.0  # when it was last given a backend
    pauses: int = 0  # how often it lost its backend to others
    seen_at: float = 0.0  # the last sign of life

    calls: dict[str, Call] = field(default_factory=dict)  # live ones, in order of arrival
    running: int = 0
    context: int = 0
    context_order: int = 0  # of the call that `context` is from
    resident: int = 0
    prompt: Prompt | None = None  # that `context` begins with, as the engine counted it
    size: Size = field(default_factory=Size)

    call_totals: CallTotals = field(default_factory=CallTotals)
    token_totals: TokenTotals = field(default_factory=TokenTotals)
    waited_s: float = 0.0  # sum over calls that no longer wait
    longest_wait_s: float = 0.0

    acting: dict[str, Acting] = field(default_factory=dict)
    tool_finished_at: float | None = None  # the latest since the last call
    gaps: Durations = field(default_factory=Durations)  # between calls of programs that say nothing; shared
    environment: Environment | None = None
    seqs: dict[str, int] = field(default_factory=dict)  # the highest seen, by emitter
    charged: set[str] = field(default_factory=set)  # backends that have an account of it

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def held(self) -> bool:
        """It could be restored, but for its environment."""
        return self.environment is not None and self.environment.held_since is not None

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self.calls) - self.running

    @property
    def closing(self) -> bool:
        """It was closed, and its last calls are still under way."""
        return self.ending is not None and self.state is not State.ENDED

    @property
    def expects_call(self) -> bool:
        """A tool has finished, none runs, and no call came since."""
        return self.tool_finished_at is not None and not self.acting

    @property
    def holds_up_others(self) -> bool:
        """Its group has next to nobody else left, or its parent waits for it."""
        return self.straggles or (self.parent is not None and self.parent.state is not State.ENDED)

    @property
    def idle_since(self) -> float | None:
        """Since when nothing has used its context; ``None`` while it reasons."""
        return None if self.phase is Phase.REASONING else max(self.acting_since, self.touched_at)

    @property
    def footprint(self) -> int:
        """Tokens its context and its running calls hold now, as far as the calls have told."""
        running = (call for call in self.calls.values() if call.backend_id is not None)
        return self.resident + sum(
            max(0, call.tokens - (self.resident if call.backend_id == self.backend_id else 0))
            for call in running
        )

    @property
    def need(self) -> int:
        """Tokens it needs room for in order to be placed: its context and what the waiting calls add."""
        waiting = (max(0, call.tokens - self.context) for call in self.calls.values() if not call.backend_id)
        return self.context + sum(waiting)

    def claim(self, backend_id: str) -> int:
        """Tokens to be reckoned with on this backend.

        Where it is placed that is its whole context, resident already or due to be: a restored program's
        next call fills what is reserved for it. Elsewhere only what calls hold that were still running when
        the program moved away.
        """
        base = self.context if backend_id == self.backend_id else 0
        return base + sum(self.excess(call) for call in self.calls.values() if call.backend_id == backend_id)

    def excess(self, call: Call) -> int:
        """Tokens a running call adds to what the program claims where it runs."""
        return max(0, call.tokens - (self.context if call.backend_id == self.backend_id else 0))

    def waiting_calls(self) -> list[Call]:
        """The calls that wait, in order of arrival."""
        if not self.waiting:
            return []
        return [call for call in self.calls.values() if call.backend_id is None]

    def first_waiting(self) -> Call | None:
        """The call that decides which backends the program may go to."""
        if not self.waiting:
            return None
        return next(call for call in self.calls.values() if call.backend_id is None)

    def take(self, step: Step) -> None:
        """Go one step of the table.

        Raises:
            IllegalTransition: the table has no such step.
        """
        after = TRANSITIONS.get((self.state, step))
        if after is None:
            raise IllegalTransition(self, step)
        self.state = after
