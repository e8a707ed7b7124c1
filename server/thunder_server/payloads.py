"""The bodies of the control plane: read strictly, explained plainly, turned into the core's events.

Unknown fields are ignored, as OpenAI-compatible servers do, so that an older server serves a newer client.
``null`` counts as not given. Numbers are numbers (no ``"5"``, no ``true``, no ``NaN``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from thunder_sdk import wire
from thunder_server.core import events
from thunder_server.core.resources import DOCKER
from thunder_server.errors import ApiError, invalid
from thunder_server.jsonbody import kind_of

# --- fields --------------------------------------------------------------------------------------------


def _id(value: str) -> str:
    if not wire.is_valid_id(value):
        raise ValueError(f"{_short(value)} is no id: {wire.ID_GRAMMAR}")
    return value


def _resource_kind(value: str) -> str:
    if value not in wire.ResourceKind.__members__.values():
        raise ValueError(f"{_short(value)} is no kind of resource; there are {', '.join(wire.ResourceKind)}")
    return value


Id = Annotated[str, AfterValidator(_id)]
Duration = Annotated[float, Field(gt=0, le=wire.MAX_SECONDS)]
DurationOrZero = Annotated[float, Field(ge=0, le=wire.MAX_SECONDS)]
Priority = Annotated[int, Field(ge=-wire.MAX_PRIORITY, le=wire.MAX_PRIORITY)]
Word = Annotated[str, Field(max_length=100_000)]
Words = Annotated[list[Word], Field(max_length=10_000)]
SAME_CLOCK_S: Final = 1.0
"""Clocks that agree this well are taken to be the same, and what lies between to be the way."""
Tag = Annotated[str, Field(max_length=wire.MAX_NAME)]


Body = TypeVar("Body", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class EnvironmentBody(_Body):
    """What the SDK's ``DockerEnvironment`` describes; ``host`` is where it is wanted."""

    kind: Literal["docker"] = "docker"
    image: Annotated[str, Field(min_length=1, max_length=wire.MAX_REF)]
    command: Words | None = None
    setup: Words = []
    env: Annotated[dict[str, Word], Field(max_length=1_000)] = {}
    mounts: Words = []
    workdir: Word | None = None
    network: Word | None = None
    limits: Annotated[dict[str, int | float | str], Field(max_length=100)] = {}
    host: Annotated[str, Field(min_length=1, max_length=wire.MAX_HOST)] | None = None

    def wanted(self, here: str) -> events.EnvironmentWanted:
        spec = self.model_dump(exclude={"host"}, exclude_defaults=True) | {"kind": self.kind}
        return events.EnvironmentWanted(image=self.image, host=self.host or here, spec=spec)


class ProgramBody(_Body):
    """``PUT /programs/{id}``."""

    name: Annotated[str, Field(max_length=wire.MAX_NAME)] | None = None
    parent_id: Id | None = None
    group: Id | None = None
    priority: Priority | None = None
    tags: Annotated[list[Tag], Field(max_length=wire.MAX_TAGS)] | None = None
    metadata: dict[str, Any] | None = None
    expected_context_tokens: Annotated[int, Field(ge=0, le=wire.MAX_TOKENS)] | None = None
    lease_s: Duration | None = None
    max_wait_s: DurationOrZero | None = None
    environment: EnvironmentBody | None = None
    age_s: DurationOrZero = 0.0  # how long ago it began, when this was sent
    sent_at: Annotated[float, Field(ge=0, le=10**11)] | None = None

    def opened(self, program_id: str, at: float, unix: float, here: Here) -> events.ProgramOpened:
        """As an event that happens ``at`` (in Unix seconds ``unix``), to a server that is ``here``."""
        fields = self.model_dump(exclude_unset=True, exclude={"environment", "age_s", "sent_at"})
        on_its_way_s = 0.0 if self.sent_at is None else unix - self.sent_at
        age_s = self.age_s + (on_its_way_s if 0 <= on_its_way_s <= SAME_CLOCK_S else 0.0)
        environment = None if self.environment is None else self.environment.wanted(here.engine)
        return events.ProgramOpened(
            at=at, program_id=program_id, fields=fields, environment=environment, age_s=age_s
        )


class EventsBody(_Body):
    """``POST /events``: the envelope; each event is read on its own."""

    emitter: Id
    events: list[Any]


class DrainBody(_Body):
    """``POST /backends/{id}/drain``."""

    timeout_s: DurationOrZero | None = None


class WeightSyncBody(_Body):
    """``POST /weight_sync/begin``: how long to wait for running calls, and when to give up on the end."""

    timeout_s: DurationOrZero = 60.0
    watchdog_s: Duration = 300.0


class ReleaseBody(_Body):
    """``POST /programs/release``, ThunderAgent's way to say that a program is over."""

    program_id: Id


class _Event(_Body):
    program_id: Id
    seq: Annotated[int, Field(ge=0, le=2**63 - 1)]
    at: Annotated[float, Field(ge=0, le=10**11)]

    def _envelope(self, at: float, emitter: str) -> dict[str, Any]:
        return {
            "at": at,
            "program_id": self.program_id,
            "emitter": emitter,
            "seq": self.seq,
            "client_at": self.at,
        }


class _ActingStarted(_Event):
    type: Literal["acting.started"]
    call_id: Id
    tool: Annotated[str, Field(max_length=wire.MAX_TOOL)]
    expected_s: DurationOrZero | None = None

    def event(self, at: float, emitter: str) -> events.ClientEvent:
        return events.ActingStarted(
            **self._envelope(at, emitter), call_id=self.call_id, tool=self.tool, expected_s=self.expected_s
        )


class _ActingFinished(_Event):
    type: Literal["acting.finished"]
    call_id: Id
    ok: bool = True

    def event(self, at: float, emitter: str) -> events.ClientEvent:
        return events.ActingFinished(**self._envelope(at, emitter), call_id=self.call_id, ok=self.ok)


class _Heartbeat(_Event):
    type: Literal["heartbeat"]

    def event(self, at: float, emitter: str) -> events.ClientEvent:
        return events.HeartbeatReceived(**self._envelope(at, emitter))


class _Resource(_Event):
    kind: Annotated[str, AfterValidator(_resource_kind)]
    ref: Annotated[str, Field(min_length=1, max_length=wire.MAX_REF, pattern=r"^[^\x00]*$")]
    host: Annotated[str, Field(min_length=1, max_length=wire.MAX_HOST)] | None = None


class _ResourceDeclared(_Resource):
    type: Literal["resource.declared"]
    keep: bool = False

    def event(self, at: float, emitter: str) -> events.ClientEvent:
        return events.ResourceDeclared(
            **self._envelope(at, emitter), kind=self.kind, ref=self.ref, host=self.host, keep=self.keep
        )


class _ResourceReleased(_Resource):
    type: Literal["resource.released"]

    def event(self, at: float, emitter: str) -> events.ClientEvent:
        return events.ResourceReleased(
            **self._envelope(at, emitter), kind=self.kind, ref=self.ref, host=self.host
        )


_AnyEvent = _ActingStarted | _ActingFinished | _Heartbeat | _ResourceDeclared | _ResourceReleased
_EVENT: TypeAdapter[_AnyEvent] = TypeAdapter(Annotated[_AnyEvent, Field(discriminator="type")])


class Here(NamedTuple):
    """What this machine, and the Docker engine in use on it, are called as hosts of resources."""

    machine: str
    engine: str

    def of(self, kind: str) -> str:
        """The host of a resource that names none."""
        return self.engine if kind in DOCKER or kind == wire.ResourceKind.ENVIRONMENT else self.machine


def read_event(value: object, at: float, emitter: str, here: Here) -> events.ClientEvent:
    """One entry of ``events`` as the core's event. Raises `ApiError`."""
    event = _read_event(value, at, emitter)
    if isinstance(event, events.ResourceDeclared | events.ResourceReleased) and event.host is None:
        return replace(event, host=here.of(event.kind))
    return event


def _read_event(value: object, at: float, emitter: str) -> events.ClientEvent:
    if not isinstance(value, Mapping):
        raise invalid(f"an event must be an object, not {kind_of(value)}")
    try:
        return _EVENT.validate_python(
            {key: inner for key, inner in value.items() if inner is not None}
        ).event(at, emitter)
    except ValidationError as refused:
        raise _explained(refused, tagged=True) from None


def read(model: type[Body], value: Mapping[str, Any]) -> Body:
    """``value`` as ``model``. Raises `ApiError` for the first field that is wrong."""
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as refused:
        raise _explained(refused) from None


# --- explanations --------------------------------------------------------------------------------------

_PLAIN: Final = {
    "missing": "is missing",
    "union_tag_not_found": "is missing",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be a string",
    "list_type": "should be an array",
    "dict_type": "should be an object",
    "model_type": "should be an object",
}


def _explained(refused: ValidationError, *, tagged: bool = False) -> ApiError:
    detail = refused.errors(include_url=False)[0]
    location = detail["loc"][1:] if tagged else detail["loc"]
    if detail["type"].startswith("union_tag"):
        location = ("type",)
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return invalid(f"{param or 'the body'}: {_reason(detail)}", param or None)


def _reason(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "union_tag_invalid":
        known = ", ".join(wire.EventType)
        return f"{_short(detail['ctx']['tag'])} is no event type; there are {known}"
    reason = _PLAIN.get(kind) or detail["msg"].removeprefix("Value error, ")
    reason = re.sub(r"^Input should ", "should ", reason)
    if kind in ("missing", "union_tag_not_found", "value_error", "string_too_long", "too_long"):
        return reason
    return f"{reason}, not {_short(detail['input'])}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
