"""What is to be done: the only way anything leaves the core.

The runtime performs them in order; the simulator performs the same ones in virtual time. Those in the lower
half ask for nothing: they say what has changed, for the event stream, the journal and the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

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
class Touch(Decision):
    """Send the program's latest prompt to this backend once more, for one token that nobody reads: an engine
    drops what was used longest ago."""

    program_id: str
    backend_id: str


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


# --- work on resources ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A program that declared a resource, and when it lived; ``next_opened_at``: its next generation."""

    program_id: str
    opened_at: float
    ended_at: float
    next_opened_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand(Decision):
    """Base of what is done outside the server's own process, on some host. ``program_id`` and ``generation``
    say on whose behalf."""

    program_id: str
    generation: int
    host: str | None


class Whose(TypedDict):
    """The common part of errands."""

    program_id: str
    generation: int
    host: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe(Errand):
    """See what a declared name stands for (answered by ``ResourceObserved``, or not at all)."""

    kind: str
    ref: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim(Errand):
    """Remove a resource, if it is one of the claimants' (answered by ``ReclaimEnded``)."""

    kind: str
    ref: str
    claims: tuple[Claim, ...]
    attempt: int
    pin: str | None = None
    brought: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey(Errand):
    """List everything that carries a program's label (answered by ``Surveyed``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareEnvironment(Errand):
    """Make the container ``name`` (answered by ``EnvironmentPrepared`` or ``EnvironmentFailed``)."""

    name: str
    spec: Mapping[str, Any]
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonEnvironment(Errand):
    """Stop preparing it; the preparation is answered then."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hibernate(Errand):
    """Pause its container (answered by ``EnvironmentHibernated``, or ``EnvironmentWoken`` if it cannot)."""

    container_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake(Errand):
    """Unpause its container (answered by ``EnvironmentWoken`` or ``EnvironmentFailed``)."""

    container_id: str


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
class ResourceChanged(Decision):
    """A resource of a program is in another state now."""

    program_id: str
    generation: int
    kind: str
    ref: str
    host: str | None
    keep: bool
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChanged(Decision):
    """A program's environment is in another state now."""

    program_id: str
    generation: int
    state: str
    container_id: str | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferred(Decision):
    """In shadow mode: the program was placed on ``backend_id``, where the router would have preferred
    another one, or has agreed (``preferred_id`` the same). Tokens are those cached of its prompt."""

    program_id: str
    backend_id: str
    preferred_id: str
    cached_tokens: int
    preferred_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizersDiffer(Decision):
    """Two replicas have made different numbers of tokens of the same prompt, so that what one has cached says
    nothing about the other. Told once for every two."""

    backend_ids: tuple[str, str]
    path: str
