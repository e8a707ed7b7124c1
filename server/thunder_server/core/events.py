"""What has happened: the only way anything enters the core.

Every event carries its own time ``at`` in seconds on the server's monotonic clock (virtual time in the
simulator). Client clocks appear only as ``client_at``, of which only differences are used. Tokens are ints,
durations float seconds. Ids are checked at the boundary; the core takes them as they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.core.prefix import Chain


class CallEnd(StrEnum):
    """How a call ended at the engine, or before it got there."""

    COMPLETED = "completed"  # a 2xx answer, passed to its end
    ENGINE_REFUSED = "engine_refused"  # the engine's own 4xx, 5xx; its status went to the client
    BACKEND_FAILED = "backend_failed"  # reset, time-out, garbage: 502, 504 or an SSE error event
    CLIENT_GONE = "client_gone"  # the client left; the engine request is cancelled
    CANCELLED = "cancelled"  # cancelled upstream because the core decided so (Cancel)


class Outcome(StrEnum):
    """How a program ended."""

    SUCCESS = "success"
    ERROR = "error"
    DROPPED = "dropped"
    LEASE_EXPIRED = "lease_expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    at: float


# --- programs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOpened(Event):
    """A ``PUT``: opens the program, or merges the given fields into the live one; renews its lease.

    After termination it opens the next generation. ``fields`` holds only what the client gave, under the
    wire names: ``name parent_id group priority tags metadata expected_context_tokens lease_s max_wait_s``.
    ``environment`` is what its sandbox should look like, taken when the program has none yet. ``age_s`` is
    how long ago it began at the client, whose reports travel in the background.
    """

    program_id: str
    fields: Mapping[str, object] = field(default_factory=dict)
    environment: EnvironmentWanted | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentWanted:
    """A sandbox: where, from which image, and everything else that only whoever prepares it understands."""

    image: str
    host: str | None = None
    spec: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent(Event):
    """Base of what clients report under ``POST /events``.

    ``seq`` rises per program and emitter; a repeated or older one is ignored. An unknown ``program_id`` is
    opened by it; a terminated one ignores it.
    """

    program_id: str
    emitter: str
    seq: int
    client_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingStarted(ClientEvent):
    call_id: str
    tool: str
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingFinished(ClientEvent):
    call_id: str
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(ClientEvent):
    """The program lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDeclared(ClientEvent):
    kind: str
    ref: str
    host: str | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReleased(ClientEvent):
    kind: str
    ref: str
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramClosed(Event):
    """A ``DELETE`` or a release. Ignored for unknown and terminated ids and, when ``generation`` is given,
    for a program at a later generation.

    ``SUCCESS`` and ``ERROR`` let waiting and running calls finish first; ``DROPPED`` cancels them.
    """

    program_id: str
    outcome: Outcome = Outcome.SUCCESS
    generation: int | None = None


# --- calls ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArrived(Event):
    """One request reached the data plane, complete with its body.

    ``call_id`` is the runtime's own and unique. ``program_id`` ``None`` means an untagged call: a program of
    its own, gone when the call ends; ``anonymous_id`` is the id it then goes by.
    """

    call_id: str
    program_id: str | None
    anonymous_id: str = ""
    path: str = "/v1/chat/completions"
    model: str | None = None
    prompt_chars: int = 0  # text characters of the prompt, images and other data URIs left out
    messages: Chain | None = None  # the prompt by its messages, ends in characters
    blocks: Chain | None = None  # and by its token blocks, as far as its tokens are known
    max_output_tokens: int | None = None
    digest: bytes = b""  # of path and body; equal digests are the same request
    is_retry: bool = False  # the client says so
    final: bool = False  # the program ends with this call
    parent_id: str | None = None
    group: str | None = None
    priority: int | None = None
    max_wait_s: float | None = None  # None: the program's, else the server's; 0: only if free now


@dataclass(frozen=True, slots=True, kw_only=True)
class CallConnectFailed(Event):
    """The backend refused the connection before any byte was sent; the call may go elsewhere."""

    call_id: str
    backend_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallProgressed(Event):
    """A running stream has produced this many tokens so far (counted by chunks, so roughly)."""

    call_id: str
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTokenized(Event):
    """What tokens the prompt of a call has is known by now, or more of them."""

    call_id: str
    blocks: Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished(Event):
    """A call that was dispatched, or still waits (``CLIENT_GONE``), is over. Exactly one per call, unless
    the core refused or cancelled it: then none is needed and a late one is ignored.

    Token counts are the engine's usage; ``None`` where it gave none.
    """

    call_id: str
    end: CallEnd
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


# --- backends ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAdded(Event):
    """A replica exists. ``capacity_tokens`` is the operator's figure and wins over what the engine reports;
    ``None`` waits for the engine to say. Until one is known it is served but not scheduled by memory."""

    backend_id: str
    capacity_tokens: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReported(Event):
    """One poll of one backend came back, or failed (``healthy=False``, everything else ignored then).

    ``capacity_tokens`` ``None`` means the engine does not say. ``models`` ``None`` means unknown: any model
    may be served.
    """

    backend_id: str
    healthy: bool
    capacity_tokens: int | None = None
    used_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    hit_rate: float | None = None
    models: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDrained(Event):
    """No new programs; bound ones move at their next call; running calls finish."""

    backend_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRemoved(Event):
    """Gone at once; its running calls are cut (the runtime reports each as ``BACKEND_FAILED``)."""

    backend_id: str


# --- what engines tell of their prefix caches ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStored(Event):
    """These blocks can be found in the backend's cache from now on; keys as in `Chain`."""

    backend_id: str
    keys: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixEvicted(Event):
    """The backend's cache has dropped these blocks."""

    backend_id: str
    keys: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCleared(Event):
    """The backend's cache is empty now. ``exact``: it tells all that it stores from here on."""

    backend_id: str
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUnseen(Event):
    """The backend does not tell what it caches any longer, or something of it was missed."""

    backend_id: str


# --- weights -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSyncBegan(Event):
    """The engines are about to get new weights: nothing is dispatched until it is over. Again while it goes
    on, it only starts the watchdog anew, which ends it after ``watchdog_s``."""

    watchdog_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSyncEnded(Event):
    """The engines have their new weights, with which no KV from before can be used."""


# --- time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed: what ``next_deadline`` announced is due. Always harmless."""
