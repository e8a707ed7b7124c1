"""What is to be done: the only way anything leaves the core.

The runtime performs them in order; the simulator performs the same ones in virtual time. Those in the lower
half ask for nothing: they say what has changed, for the event stream, the journal and the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from thunder_server.core.events import Outcome


class Refusal(StrEnum):
    """Why a call is not served; the value is the ``code`` clients see."""

    NO_BACKEND = "no_backend"  # 503: none healthy for 5 s
    ADMISSION_TIMEOUT = "admission_timeout"  # 503: waited max_wait
    BACKEND_ERROR = "backend_error"  # 502: every backend tried refused the connection
    PROGRAM_TERMINATED = "program_terminated"  # 409: dropped, or its lease ended
    SUPERSEDED = "superseded"  # 409: a retry took its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Base of all decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Decision):
    """Send the call to this backend now. ``waited_s`` is how long it was held."""

    call_id: str
    program_id: str
    backend_id: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Decision):
    """Answer a call that was never sent (or whose every connection was refused); it is over."""

    call_id: str
    program_id: str
    refusal: Refusal
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Decision):
    """Cancel a dispatched call at its engine and answer the client with this refusal; it is over."""

    call_id: str
    program_id: str
    backend_id: str
    refusal: Refusal
    message: str


# --- told, not asked -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Decision):
    program_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Decision):
    program_id: str
    generation: int
    phase: str  # reasoning | acting
    tool: str | None = None  # the tool that started, if that is why


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked(Decision):
    """A reasoning program will be paused when its running calls end (or no longer: ``marked=False``)."""

    program_id: str
    generation: int
    backend_id: str
    marked: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Decision):
    """The program left its backend (``None``: it never had one) for the global queue."""

    program_id: str
    generation: int
    backend_id: str | None
    context_tokens: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Decision):
    """The program left the global queue for this backend. ``moved``: not the one it was on before."""

    program_id: str
    generation: int
    backend_id: str
    context_tokens: int
    paused_s: float
    moved: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Decision):
    """Nothing is dispatched any longer, until `Resumed`; ``running`` calls are still under way."""

    running: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Decision):
    """Calls are dispatched again."""

    held_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(Decision):
    program_id: str
    generation: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Decision):
    """Nothing of this id is kept any longer (ten minutes after its end; at once for untagged calls)."""

    program_id: str
