"""Everything ``thunder serve`` can be told, from flags, ``THUNDER_…`` variables and a TOML file.

One table says it all: the fields of `Settings`. A field ``paper_decay`` is the flag ``--paper-decay``, the
variable ``THUNDER_PAPER_DECAY`` and the TOML key ``paper_decay``; the first of these three that is given
wins. Every complaint names the place it concerns.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import ErrorDetails

from thunder_server.backend_spec import BackendSpec, Count, Endpoint, Engine, Key, no_bool

POLICIES: Final = ("phase", "paper", "cap", "passthrough")
ENV_PREFIX: Final = "THUNDER_"
_PLAIN: Final = dict.fromkeys(
    ("int_parsing", "int_parsing_size", "int_type", "int_from_float"), "should be a whole number"
) | {
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "finite_number": "should be a finite number",
    "tuple_type": "should be a list",
    "model_type": "should be a URL or a table with one",
    "missing": "is missing",
}
_OF_BACKENDS: Final = ("engine", "capacity_tokens", "kv_events", "kv_events_replay")
"""What may be said of all backends at once."""
_SIZES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class SettingsError(ValueError):
    """One line: which flag, variable or TOML key is wrong, why, and what to write instead."""


def _known_policy(policy: object) -> object:
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"policy {policy!r} is unknown; there are {', '.join(POLICIES)}")
    return policy


def _size(value: object) -> object:
    """``67108864``, ``64M`` or ``64MiB``."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("should be a size in bytes, for instance 67108864 or 64MiB")
    return int(match[1]) * _SIZES[match[2].lower()]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | dict) else value


def _directories(value: object) -> object:
    """``/a:/b`` as the variable has it, or a list."""
    entries = value.split(os.pathsep) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(
        isinstance(entry, str) and Path(entry).is_absolute() for entry in entries
    ):
        raise ValueError("should be absolute paths of directories, for instance /var/tmp/agents")
    return entries


def _numbers(value: object) -> object:
    """``0.5,0.3,0.2``."""
    return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value


Weight = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1)]
Seconds = Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=10**7)]
SecondsOrZero = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=10**7)]
Factor = Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=10)]


class Settings(BaseModel):
    """What a server runs with, complete and checked. Times are seconds, sizes bytes or tokens as named."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Annotated[tuple[BackendSpec, ...], BeforeValidator(_as_list)] = ()
    engine: Engine = "vllm"
    capacity_tokens: Count | None = None
    policy: Annotated[Literal["phase", "paper", "cap", "passthrough"], BeforeValidator(_known_policy)] = (
        "phase"
    )
    cap: Annotated[int, BeforeValidator(no_bool), Field(gt=0, le=10**6)] | None = None
    paper_interval: Seconds = 5.0
    paper_decay: Annotated[float, BeforeValidator(no_bool), Field(ge=1, le=10**6)] = 2.0
    paper_lambda_max: Factor = 1.0
    paper_lambda_min: Factor = 1.0
    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, BeforeValidator(no_bool), Field(ge=0, le=65535)] = 8300
    api_key: Annotated[tuple[Key, ...], BeforeValidator(_as_list), Field(max_length=100)] = ()
    insecure: bool = False
    open_metrics: bool = False
    auto_lease: Seconds = 600.0
    max_wait: SecondsOrZero = 540.0
    queue_heartbeat: Seconds = 10.0
    max_body: Annotated[int, BeforeValidator(no_bool), BeforeValidator(_size), Field(gt=0, le=2**40)] = 2**26
    engine_priority: bool = False
    keep_warm: bool = False
    shadow: bool = False
    router_weights: Annotated[tuple[Weight, Weight, Weight], BeforeValidator(_numbers)] = (0.5, 0.3, 0.2)
    router_exploration: Weight = 0.1
    router_gather: Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1)] = 0.02
    kv_events: Endpoint | None = None
    kv_events_replay: Endpoint | None = None
    tokenize_wait: Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=10)] = 0.03
    poll: Annotated[float, BeforeValidator(no_bool), Field(ge=0.05, le=3600)] = 1.0
    state: Path | None = None
    hibernate_after: Seconds | None = None
    resource_root: Annotated[tuple[Path, ...], BeforeValidator(_directories)] = ()

    @property
    def backends(self) -> tuple[BackendSpec, ...]:
        return self.backend

    @property
    def api_keys(self) -> tuple[str, ...]:
        return tuple(key.get_secret_value() for key in self.api_key)


@dataclass(frozen=True, slots=True)
class _Given:
    """One value and the place that gave it, as the user would name it."""

    value: Any
    place: str


def load_settings(
    flags: Mapping[str, str | bool | list[str] | None], environ: Mapping[str, str], config: str | None = None
) -> Settings:
    """The settings of one server: ``flags`` win over ``environ``, that over the TOML file ``config``.

    ``flags`` maps field names to what the command line gave; ``None`` (or nothing in a list) counts as not
    given, as an empty variable does. Raises `SettingsError`.

    >>> load_settings({"backend": ["http://gpu:8000"]}, {"THUNDER_POLL": "2"}).poll
    2.0
    """
    given: dict[str, _Given] = {}
    if config:
        given.update(_from_file(config, "--config"))
    elif path := environ.get(ENV_PREFIX + "CONFIG"):
        given.update(_from_file(path, ENV_PREFIX + "CONFIG"))
    for name in Settings.model_fields:
        variable = ENV_PREFIX + name.upper()
        if text := environ.get(variable, "").strip():
            given[name] = _Given(_split(name, text), variable)
    for name, value in flags.items():
        if value not in (None, [], ()):
            if name == "backend" and isinstance(value, list):
                value = _split(name, " ".join(value))
            given[name] = _Given(value, "--" + name.replace("_", "-"))
    settings = _validated(given)
    _check_together(settings, given)
    return settings


def _split(name: str, text: str) -> Any:
    return [url for url in re.split(r"[,\s]+", text) if url] if name == "backend" else text


def _from_file(path: str, said_by: str) -> dict[str, _Given]:
    try:
        table = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as unreadable:
        raise SettingsError(f"{said_by}: cannot read {path}: {unreadable.strerror or unreadable}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is no UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as malformed:
        raise SettingsError(f"{path}: is no valid TOML: {malformed}") from None
    given = {}
    for key, value in table.items():
        place = f"{path}: {key}"
        _refuse_unknown(key, Settings.model_fields, place)
        if key == "backend" and isinstance(value, list):
            for index, entry in enumerate(value):
                for inner in entry if isinstance(entry, dict) else ():
                    _refuse_unknown(inner, BackendSpec.model_fields, f"{place}[{index}].{inner}")
        given[key] = _Given(value, place)
    return given


def _refuse_unknown(key: str, known: Mapping[str, object], place: str) -> None:
    if key in known:
        return
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    hint = f"did you mean {close[0]} ?" if close else f"there are {', '.join(known)}"
    raise SettingsError(f"{place}: is no setting; {hint}")


def _validated(given: Mapping[str, _Given]) -> Settings:
    values = {name: entry.value for name, entry in given.items()}
    if isinstance(backends := values.get("backend"), list | dict | str):
        # What a backend does not say itself, the flags for all of them say.
        defaults = {key: values[key] for key in _OF_BACKENDS if key in values}
        entries = backends if isinstance(backends, list) else [backends]
        values["backend"] = [
            {**defaults, "url": entry}
            if isinstance(entry, str)
            else {**defaults, **entry}
            if isinstance(entry, dict)
            else entry
            for entry in entries
        ]
    try:
        return Settings.model_validate(values)
    except ValidationError as invalid:
        # Fields in the order a user would look: what concerns all backends before one of them.
        details = sorted(invalid.errors(), key=lambda detail: detail["loc"][0] == "backend")
        raise SettingsError(_complaint(details[0], given)) from None


def _complaint(detail: ErrorDetails, given: Mapping[str, _Given]) -> str:
    name, *inner = detail["loc"]
    place = given[str(name)].place
    secret = "api_key" in (name, *inner)
    if place.startswith(("--", ENV_PREFIX)):
        inner = []  # they hold no parts to name; of several URLs the message quotes the one it means
    for part in inner:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    message = _PLAIN.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    message = re.sub(r"^Input should ", "should ", message)
    got = "" if secret or detail["type"] in ("value_error", "missing") else f", not {_short(detail['input'])}"
    return f"{place}: {message}{got}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_together(settings: Settings, given: Mapping[str, _Given]) -> None:
    """What no field can say alone."""

    def place(name: str) -> str:
        return given[name].place if name in given else "--" + name.replace("_", "-")

    hosts = {
        backend.endpoint(backend.kv_events) for backend in settings.backend if backend.kv_events is not None
    }
    checks: list[tuple[bool, Callable[[], str]]] = [
        (
            "backend" not in given,
            lambda: (
                "--backend: say where at least one engine is, for instance --backend http://127.0.0.1:8000"
            ),
        ),
        (
            settings.policy == "cap" and settings.cap is None,
            lambda: f"{place('policy')}: policy cap needs a number of programs per backend; add --cap N",
        ),
        (
            settings.policy != "cap" and settings.cap is not None,
            lambda: f"{place('cap')}: only policy cap has one; add --policy cap",
        ),
        (
            settings.keep_warm and settings.policy != "phase",
            lambda: f"{place('keep_warm')}: only policy phase does that; leave out one of them",
        ),
        (
            settings.keep_warm and any(backend.engine == "openai" for backend in settings.backend),
            lambda: (
                f"{place('keep_warm')}: sends prompts again, which is for engines of one's own; "
                "what the cache of engine openai does is not known"
            ),
        ),
        (
            settings.paper_lambda_min > settings.paper_lambda_max,
            lambda: (
                f"{place('paper_lambda_min')}: must not exceed paper_lambda_max "
                f"({settings.paper_lambda_min:g} > {settings.paper_lambda_max:g})"
            ),
        ),
        (
            not math.isclose(sum(settings.router_weights), 1, abs_tol=1e-6),
            lambda: (
                f"{place('router_weights')}: must add up to 1, not {sum(settings.router_weights):g}; "
                "they weigh what is cached, load and latency, for instance 0.5,0.3,0.2"
            ),
        ),
        (
            settings.kv_events is not None and len(hosts) < len(settings.backend),
            lambda: (
                f"{place('kv_events')}: backends on one host cannot all publish there; give each its own, as "
                "kv_events of its table in the TOML file"
            ),
        ),
        (
            not is_loopback(settings.host) and not settings.api_key and not settings.insecure,
            lambda: (
                f"{place('host')}: {settings.host} is reachable from elsewhere; add --api-key KEY, "
                "or --insecure to let everybody in"
            ),
        ),
    ]
    for wrong, complaint in checks:
        if wrong:
            raise SettingsError(complaint())
    _check_distinct(settings.backend, place("backend"))


def _check_distinct(backends: Sequence[BackendSpec], place: str) -> None:
    seen: dict[str, BackendSpec] = {}
    for backend in backends:
        other = seen.setdefault(backend.id, backend)
        if other is not backend:
            raise SettingsError(
                f"{place}: {other.url} and {backend.url} are one backend, {backend.id}; name it once"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there.

    >>> is_loopback("localhost"), is_loopback("127.0.0.9"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
