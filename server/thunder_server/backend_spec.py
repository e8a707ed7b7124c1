"""What an operator says about one engine replica: on the command line, in TOML, in ``POST /backends``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

EngineName = Literal["vllm", "sglang", "openai"]
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
PRIORITY_SIGN: Final[Mapping[EngineName, int]] = {"vllm": -1, "sglang": 1}
"""Which way engines count that read a ``priority`` in the body: vLLM serves the lower number earlier."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def normal_url(url: str) -> str:
    """The one spelling of an engine's root: a trailing ``/``, ``/v1`` or ``/v1/`` dropped, a prefix kept.

    Raises ValueError, saying what to write instead.

    >>> normal_url("HTTP://GPU-1:8000/v1/")
    'http://gpu-1:8000'
    """
    example = "write it like http://127.0.0.1:8000"
    if any(character.isspace() or ord(character) < 0x20 for character in url):
        raise ValueError(f"{url!r} holds white space; {example}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as unreadable:
        raise ValueError(f"{url!r} is no URL ({unreadable}); {example}") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        hint = f"did you mean http://{url} ?" if "://" not in url and url[:1].isalnum() else example
        raise ValueError(f"{url!r} is no http:// or https:// URL; {hint}")
    if port == 0:
        raise ValueError(f"{url!r} has port 0; {example}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a backend URL holds no user or password; give its key as api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} is more than the engine's root (it has a query or fragment); {example}")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path.removesuffix("/v1").rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def _known_engine(engine: object) -> object:
    if isinstance(engine, str) and engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown; there are {', '.join(ENGINES)}")
    return engine


def no_bool(value: object) -> object:
    """``true`` is no 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not a truth value")
    return value


def _header_safe(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e]+", key.get_secret_value()):
        raise ValueError("a key must be visible ASCII without spaces, as it travels in a header")
    return key


def _endpoint(said: object) -> object:
    """A port, or ``tcp://host:port`` or ``ipc://path``; ``tcp://*:port`` waits for the engine to connect."""
    if isinstance(said, int) and not isinstance(said, bool):
        said = str(said)
    if isinstance(said, str) and (
        (said.isascii() and said.isdigit() and 0 < int(said) < 65536)
        or re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}|ipc://\S+", said)
    ):
        return said
    raise ValueError("should be a port, or a ZMQ endpoint like tcp://gpu-1:5557")


Endpoint = Annotated[str, BeforeValidator(_endpoint)]
Key = Annotated[SecretStr, AfterValidator(_header_safe)]
Engine = Annotated[EngineName, BeforeValidator(_known_engine)]
Count = Annotated[int, BeforeValidator(no_bool), Field(gt=0, le=10**12)]


class BackendSpec(BaseModel):
    """One replica. ``capacity_tokens`` is the operator's figure for its KV cache and wins over the engine's
    own; an ``openai`` engine reports none, so without it that backend is not scheduled by memory.

    >>> BackendSpec(url="http://10.0.0.7:8000/v1").id
    '10.0.0.7:8000'
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    url: Annotated[str, AfterValidator(normal_url)]
    engine: Engine = "vllm"
    api_key: Key | None = None
    weight: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e6)] = 1.0
    capacity_tokens: Count | None = None
    kv_events: Endpoint | None = None
    """Where a vLLM publishes what its prefix cache does: a ZMQ endpoint, or a port of the engine's host."""
    kv_events_replay: Endpoint | None = None
    """And where it tells again what was missed."""

    def endpoint(self, said: str) -> str:
        """The ZMQ endpoint that ``kv_events`` or ``kv_events_replay`` means.

        >>> BackendSpec(url="http://10.0.0.7:8000").endpoint("5557")
        'tcp://10.0.0.7:5557'
        """
        return f"tcp://{self.id.rpartition(':')[0]}:{said}" if said.isdigit() else said

    @property
    def id(self) -> str:
        """``host:port``: what ``X-Thunder-Backend`` says."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return f"{f'[{host}]' if ':' in host else host}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"
