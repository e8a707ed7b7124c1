"""Settings: argument over environment over default."""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from thunder_sdk import wire
from thunder_sdk._dialects import DIALECTS, OURS
from thunder_sdk._exceptions import ThunderConfigError

BASE_URL = "THUNDER_BASE_URL"
API_KEY = "THUNDER_API_KEY"
STRICT = "THUNDER_STRICT"
DISABLED = "THUNDER_DISABLED"
PROGRAM_CONTEXT = "THUNDER_PROGRAM_CONTEXT"

_HOST = re.compile(r"[^\s*/\\@?#%]+")
_TRUE = frozenset({"1", "true", "yes", "on"})
_PORTS = {"http": 80, "https": 443}

Verify = bool | str | ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What `init` was told, checked. ``base_url`` is the server's root, None while nobody has named one."""

    base_url: str | None
    api_key: str | None
    strict: bool
    disabled: bool
    dialects: tuple[str, ...]
    tag_hosts: frozenset[tuple[str | None, str, int | None]]  # (scheme or any, host, port or any)
    lease: float
    timeout: float
    verify: Verify

    @classmethod
    def resolve(
        cls,
        environ: Mapping[str, str],
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        strict: bool | None = None,
        disabled: bool | None = None,
        dialects: Iterable[str] = (OURS,),
        tag_hosts: Iterable[str] = (),
        lease: float = 60.0,
        timeout: float = 5.0,
        verify: Verify = True,
    ) -> Config:
        """Raises ThunderConfigError, naming the argument or variable and what it should be."""
        root, source = (
            (base_url, "base_url") if base_url is not None else (environ.get(BASE_URL) or None, BASE_URL)
        )
        return cls(
            base_url=None if root is None else _root(root, source),
            api_key=_key(environ.get(API_KEY), API_KEY) if api_key is None else _key(api_key, "api_key"),
            strict=_flag(environ, STRICT) if strict is None else strict,
            disabled=_flag(environ, DISABLED) if disabled is None else disabled,
            dialects=tuple(_dialect(name) for name in strings("dialects", dialects)),
            tag_hosts=frozenset(_tag_host(entry) for entry in strings("tag_hosts", tag_hosts)),
            lease=seconds("lease", lease, positive=True),
            timeout=seconds("timeout", timeout, positive=True),
            verify=_verify(verify),
        )

    @property
    def control(self) -> bool:
        """Whether there is a server of ours to talk to at all."""
        return not self.disabled and OURS in self.dialects

    @property
    def root(self) -> str:
        """The configured root, else the default."""
        return self.base_url or wire.DEFAULT_BASE_URL

    def tags(self, scheme: str, host: str, port: int | None) -> bool:
        """Whether a request to there carries identity, going by the settings alone."""
        if port is None:
            port = _PORTS.get(scheme)
        if self.tag_hosts and not self.tag_hosts.isdisjoint(
            ((None, host, None), (None, host, port), (scheme, host, port))
        ):
            return True
        return address(self.root) == (scheme, host, port)


def address(url: str) -> tuple[str, str, int | None]:
    """``(scheme, host, port)`` of a URL, with the scheme's default port filled in."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def seconds(name: str, value: float, *, positive: bool = False) -> float:
    """`value` as a finite duration, else ThunderConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ThunderConfigError(f"{name} must be a number of seconds, not {value!r}")
    if value < 0 or (positive and value == 0):
        raise ThunderConfigError(
            f"{name} must be {'more than 0' if positive else '0 or more'} s, not {value!r}"
        )
    if value > wire.MAX_SECONDS:
        raise ThunderConfigError(f"{name} must be at most {wire.MAX_SECONDS} s, not {value!r}")
    return float(value)


def strings(name: str, value: object) -> tuple[str, ...]:
    """`value` as a tuple of strings, else ThunderConfigError; one string alone is a slip."""
    entries = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    if entries is None or not all(isinstance(entry, str) for entry in entries):
        raise ThunderConfigError(f'{name} is a sequence of strings: write ["…"], not {value!r}')
    return entries


def _flag(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() in _TRUE


def _root(url: object, source: str) -> str:
    if not isinstance(url, str):
        raise ThunderConfigError(f"{source} must be a URL like {wire.DEFAULT_BASE_URL}, not {url!r}")
    try:
        return wire.root_url(url)
    except ValueError as error:
        raise ThunderConfigError(f"{source}: {error}") from error


def _key(key: object, source: str) -> str | None:
    """What fits into a header; None for nothing."""
    if key is None or key == "":
        return None
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
        raise ThunderConfigError(f"{source} must be printable ASCII without spaces")
    return key


def _verify(verify: object) -> Verify:
    if isinstance(verify, (bool, ssl.SSLContext)) or (isinstance(verify, str) and Path(verify).exists()):
        return verify
    raise ThunderConfigError(
        f"verify must be a bool, an ssl.SSLContext or an existing CA file, not {verify!r}"
    )


def _dialect(name: str) -> str:
    if name not in DIALECTS:
        raise ThunderConfigError(f"unknown dialect {name!r}; there are {', '.join(DIALECTS)}")
    return name


def _tag_host(entry: str) -> tuple[str | None, str, int | None]:
    try:
        parts = urlsplit(entry if "://" in entry else f"//{entry}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if (
        host is None
        or not _HOST.fullmatch(host)
        or parts.path not in ("", "/")
        or parts.query
        or parts.username is not None
    ):
        raise ThunderConfigError(f"tag_hosts: {entry!r} is neither host, host:port nor origin")
    if parts.scheme:
        return parts.scheme, host, port or _PORTS.get(parts.scheme)
    return None, host, port
