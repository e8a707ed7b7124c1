"""What client and server say to each other: header names, the id grammar, payload shapes. Stdlib only.

Both sides import this module, so a name lives in one place. Durations are seconds (float), sizes tokens,
``at`` is Unix seconds on the client's clock, of which only differences are used.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final, Literal, NotRequired, TypedDict, TypeGuard
from urllib.parse import urlsplit

# --- headers -------------------------------------------------------------------------------------------

PROGRAM_ID: Final = "X-Thunder-Program-Id"
PARENT_ID: Final = "X-Thunder-Parent-Id"
GROUP: Final = "X-Thunder-Group"
PRIORITY: Final = "X-Thunder-Priority"
MAX_WAIT: Final = "X-Thunder-Max-Wait"
FINAL: Final = "X-Thunder-Final"
RETRY: Final = "X-Thunder-Retry"
API_KEY: Final = "X-Thunder-Api-Key"
BACKEND: Final = "X-Thunder-Backend"
WAIT_MS: Final = "X-Thunder-Wait-Ms"
AGE: Final = "X-Thunder-Age"  # of a PUT: seconds since the program began; what it made since then is its own
SENT_AT: Final = "X-Thunder-Sent-At"  # of a PUT: Unix seconds on the client's clock
THUNDER_PREFIX: Final = "x-thunder-"  # lower case: everything under it is ours and stops at the server

SESSION_ID: Final = "X-Session-ID"
DYNAMO_SESSION_ID: Final = "X-Dynamo-Session-ID"
DYNAMO_PARENT_SESSION_ID: Final = "X-Dynamo-Parent-Session-ID"
DYNAMO_SESSION_FINAL: Final = "X-Dynamo-Session-Final"
CLAUDE_CODE_SESSION_ID: Final = "x-claude-code-session-id"
LITELLM_SESSION_ID: Final = "x-litellm-session-id"
CODEX_SESSION_ID: Final = "session-id"
SMG_ROUTING_KEY: Final = "x-smg-routing-key"
LLM_D_SESSION_ID: Final = "x-session-id"
LLM_D_FAIRNESS_ID: Final = "x-llm-d-inference-fairness-id"

STAINLESS_RETRY_COUNT: Final = "x-stainless-retry-count"
SHOULD_RETRY: Final = "x-should-retry"
TRACEPARENT: Final = "traceparent"
BAGGAGE: Final = "baggage"
BAGGAGE_PROGRAM_ID: Final = "thunder.program.id"

# Foreign headers that can name a program, in the order of precedence after our own header and the body.
FOREIGN_IDENTITY: Final = (
    DYNAMO_SESSION_ID,
    CLAUDE_CODE_SESSION_ID,
    LITELLM_SESSION_ID,
    SESSION_ID,
    CODEX_SESSION_ID,
)

# --- paths and addresses -------------------------------------------------------------------------------

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8300"
CONTROL_PREFIX: Final = "/thunder/v1"
EVENTS_PATH: Final = CONTROL_PREFIX + "/events"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def program_path(program_id: str) -> str:
    """The control path of one program, ``/thunder/v1/programs/{id}``. The grammar needs no quoting."""
    return f"{CONTROL_PREFIX}/programs/{program_id}"


def split_base_url(base_url: str) -> tuple[str, str]:
    """``(origin, prefix)`` of a server's root. A trailing ``/``, ``/v1`` or ``/v1/`` is dropped.

    Raises ValueError, saying what to write instead, unless it is an http(s) URL with a host and without
    credentials, query or fragment.

    >>> split_base_url("http://gpu:8300/thunder/v1/")
    ('http://gpu:8300', '/thunder')
    """
    parts = urlsplit(base_url.strip())
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{base_url!r} is no http(s) URL; write it like {DEFAULT_BASE_URL}")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{base_url!r} must be a plain root like {DEFAULT_BASE_URL}: no user, query or fragment"
        )
    path = parts.path.rstrip("/")
    if path == "/v1" or path.endswith("/v1"):
        path = path[: -len("/v1")].rstrip("/")
    return origin(base_url.strip()), path


def root_url(base_url: str) -> str:
    """`split_base_url`, joined: the one spelling of a server's root.

    >>> root_url("HTTP://GPU:80/v1/")
    'http://gpu'
    """
    return "".join(split_base_url(base_url))


def origin(url: str) -> str:
    """``scheme://host[:port]`` in lower case, without the scheme's default port. Raises ValueError.

    >>> origin("https://Example.com:443/v1/chat")
    'https://example.com'
    """
    parts = urlsplit(url)
    host = parts.hostname
    if not parts.scheme or not host:
        raise ValueError(f"{url!r} has no scheme and host; write it like {DEFAULT_BASE_URL}")
    if ":" in host:
        host = f"[{host}]"
    port = parts.port
    if port is None or port == _DEFAULT_PORTS.get(parts.scheme):
        return f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{host}:{port}"


# --- identity ------------------------------------------------------------------------------------------

ID_PATTERN: Final = re.compile(r"[A-Za-z0-9._:@+=-]{1,200}")
ID_GRAMMAR: Final = "1 to 200 of the characters A-Z a-z 0-9 . _ : @ + = - and not '.' or '..'"
EMITTER_PATTERN: Final = re.compile(r"[0-9a-f]{32}")

# --- bounds: the server refuses what is beyond them, so the client lets nobody start with it ---------------

MAX_NAME: Final = 200  # characters of a name, and of a tag
MAX_TAGS: Final = 100
MAX_TOOL: Final = 1_000  # characters
MAX_REF: Final = 4_096
MAX_HOST: Final = 255
MAX_PRIORITY: Final = 2**31 - 1  # and -MAX_PRIORITY
MAX_SECONDS: Final = 10**9
MAX_TOKENS: Final = 10**9


def is_valid_id(value: object) -> TypeGuard[str]:
    """Whether `value` may be the id of a program, group or call.

    >>> is_valid_id("prg_1"), is_valid_id("a b"), is_valid_id(".."), is_valid_id(None)
    (True, False, False, False)
    """
    return isinstance(value, str) and ID_PATTERN.fullmatch(value) is not None and value not in (".", "..")


def foreign_id(value: str) -> str:
    """The program id for another system's session id: itself if the grammar allows, else a hash of it.

    The result is ``h_`` and the first 32 hex digits of SHA-256 over the UTF-8 text, so equal sessions meet in
    equal programs. Lone surrogates (bytes that were no UTF-8) count as those bytes.

    >>> foreign_id("user 7")
    'h_08ae6a73238f8fe2f457320713cb9af5'
    """
    if is_valid_id(value):
        return value
    try:
        raw = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = value.encode("utf-8", "surrogatepass")
    return "h_" + hashlib.sha256(raw).hexdigest()[:32]


# --- payloads of the control plane ---------------------------------------------------------------------


class EventType(StrEnum):
    """The values of ``type`` in ``POST /thunder/v1/events``."""

    ACTING_STARTED = "acting.started"
    ACTING_FINISHED = "acting.finished"
    HEARTBEAT = "heartbeat"
    RESOURCE_DECLARED = "resource.declared"
    RESOURCE_RELEASED = "resource.released"


class ResourceKind(StrEnum):
    """What a program can hold outside the GPU."""

    CONTAINER = "container"
    IMAGE = "image"
    NETWORK = "network"
    VOLUME = "volume"
    DIRECTORY = "directory"
    PROCESS = "process"
    PORT = "port"
    ENVIRONMENT = "environment"


class ProgramFields(TypedDict, total=False):
    """Body of ``PUT /thunder/v1/programs/{id}``: only what the client wants to say."""

    name: str
    parent_id: str
    group: str
    priority: int
    tags: list[str]
    metadata: dict[str, object]
    expected_context_tokens: int
    lease_s: float
    max_wait_s: float
    environment: dict[str, object]


class _Event(TypedDict):
    program_id: str
    seq: int
    at: float


class ActingStartedEvent(_Event):
    """A tool began; ``expected_s`` is how long the agent thinks it will take."""

    type: Literal["acting.started"]
    call_id: str
    tool: str
    expected_s: NotRequired[float]


class ActingFinishedEvent(_Event):
    """The tool of ``call_id`` is done: a call is due."""

    type: Literal["acting.finished"]
    call_id: str
    ok: bool


class HeartbeatEvent(_Event):
    """The program lives; nothing else to say."""

    type: Literal["heartbeat"]


class ResourceEvent(_Event):
    """A program holds something (``resource.declared``) or gave it back (``resource.released``)."""

    type: Literal["resource.declared", "resource.released"]
    kind: str
    ref: str
    host: NotRequired[str | None]
    keep: NotRequired[bool]


EventPayload = ActingStartedEvent | ActingFinishedEvent | HeartbeatEvent | ResourceEvent


class EventBatch(TypedDict):
    """Body of ``POST /thunder/v1/events``. ``emitter`` names one process: 32 hex digits, new after a fork."""

    emitter: str
    events: list[EventPayload]


class ProgramState(TypedDict):
    """One program in the answer to a batch."""

    status: str
    phase: str
    generation: int
    outcome: str | None


class EventError(TypedDict):
    """One event of a batch that was not taken."""

    index: int
    message: str


class EventsAnswer(TypedDict):
    """Answer to ``POST /thunder/v1/events``."""

    programs: dict[str, ProgramState]
    errors: list[EventError]


# --- work on resources ---------------------------------------------------------------------------------
# The server decides what is to be done about resources; a worker, on the server's machine or in
# ``thunder reaper`` on another one, does one task at a time and says how it went.

REAPER_WORK_PATH: Final = CONTROL_PREFIX + "/reaper/work"
REAPER_RESULTS_PATH: Final = CONTROL_PREFIX + "/reaper/results"
PROGRAM_LABEL: Final = "thunder.program"  # of Docker objects; its value is a program's id


class Work(StrEnum):
    """What a task asks for."""

    OBSERVE = "observe"  # look at what was just declared: its id, and whether the program can have brought it
    RECLAIM = "reclaim"  # remove one resource, if it is the program's
    PREPARE = "prepare"  # make a program's environment
    ABANDON = "abandon"  # stop preparing; the preparation answers
    HIBERNATE = "hibernate"  # pause a container
    WAKE = "wake"  # unpause it
    SURVEY = "survey"  # list everything that carries a program's label
    MEASURE = "measure"  # how much disk one resource takes


class WorkEnd(StrEnum):
    """How a task went."""

    DONE = "done"
    ABSENT = "absent"  # there was nothing (any more)
    SPARED = "spared"  # not proven to be the program's: left alone for good
    FAILED = "failed"


class Claim(TypedDict):
    """A program that said a resource is its own, and when it lived: Unix seconds on the server's clock."""

    program_id: str
    opened_at: float
    ended_at: float
    next_opened_at: NotRequired[float]  # of its next generation: what is younger is that one's


class Task(TypedDict):
    """One piece of work for a worker. ``task`` is the same whenever the same work is handed out again.

    ``now`` is the server's Unix time at that moment; workers use differences to it, never their own clock's
    absolute time. Doing a task twice must be harmless.
    """

    task: str
    do: str
    host: str
    now: float
    timeout_s: float
    attempt: int
    program_id: str
    generation: int
    kind: NotRequired[str]  # observe, reclaim, measure
    ref: NotRequired[str]  # likewise; hibernate, wake: the container
    claims: NotRequired[list[Claim]]  # observe, reclaim
    pin: NotRequired[str]  # reclaim: what observing said
    brought: NotRequired[bool]  # likewise
    name: NotRequired[str]  # prepare: what to call the container
    environment: NotRequired[dict[str, object]]  # prepare


class FoundObject(TypedDict):
    """Something that carries a program's label. ``created_at`` is on the server's clock."""

    kind: str
    ref: str
    name: str
    program_id: str
    created_at: float


class TaskResult(TypedDict):
    """What a worker says about a task. ``retryable``: the same may succeed later."""

    task: str
    end: str
    error: NotRequired[str | None]
    retryable: NotRequired[bool]
    pin: NotRequired[str]  # observe: the id of what the name stands for now
    brought: NotRequired[bool]  # observe: whether the program can have brought it
    container_id: NotRequired[str]  # prepare
    seconds: NotRequired[float]  # prepare
    objects: NotRequired[list[FoundObject]]  # survey
    bytes: NotRequired[int | None]  # measure
