"""Which requests carry a program's identity, decided for every hop, and what they carry."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final, Protocol

from thunder_sdk import wire
from thunder_sdk._config import address
from thunder_sdk._dialects import OURS
from thunder_sdk._process import here
from thunder_sdk._program import current_program
from thunder_sdk._tracing import traceparent

# Keys in a request's `extensions`, which httpx hands on to the requests that follow a redirect.
BASE_URL: Final = "thunder_sdk.base_url"
_ADDED: Final = "thunder_sdk.added"
_ROOT: Final = re.compile(r"(.*?)(?:/p/[^/]+)?/v1/")


class Url(Protocol):
    """As much of httpx's URL as is needed."""

    @property
    def scheme(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int | None: ...
    @property
    def path(self) -> str: ...


class Request(Protocol):
    """As much of httpx's request as is needed; httpx2's is the same."""

    url: Any
    headers: Any
    extensions: Any


def tag(request: Request) -> bool:
    """Adds the current program's headers if the request goes where they may be seen; whether it did."""
    _untag(request)
    program = current_program()
    if program is None or not _may_see(request):
        return False
    headers: MutableMapping[str, str] = request.headers
    added = {}
    for name, value in program.headers().items():
        if name not in headers:
            headers[name] = added[name] = value
    parent = traceparent(program.span)
    if parent is not None and wire.TRACEPARENT not in headers:
        headers[wire.TRACEPARENT] = added[wire.TRACEPARENT] = parent
    if added:
        request.extensions[_ADDED] = added
    return True


def _untag(request: Request) -> None:
    """A redirect copies headers: takes back those that an earlier hop got from us."""
    added = request.extensions.pop(_ADDED, None)
    for name, value in (added or {}).items():
        if request.headers.get(name) == value:
            del request.headers[name]


def _may_see(request: Request) -> bool:
    config = here().config
    if config.disabled:
        return False
    url: Url = request.url
    if config.tags(url.scheme, url.host, url.port):
        return True
    base_url = request.extensions.get(BASE_URL)
    return base_url is not None and address(base_url) == address(str(url))


def answered(request: Request, headers: Any) -> None:
    """Looks at a tagged call's response: whoever names the program is a server of ours."""
    process = here()
    if process.config.base_url is None and OURS in process.config.dialects and wire.PROGRAM_ID in headers:
        url: Url = request.url
        scheme, host, port = address(str(url))
        process.sender.discovered(wire.origin(f"{scheme}://{_bracketed(host)}:{port}") + _prefix(url.path))


def _prefix(path: str) -> str:
    """What a server's root has before ``/v1/…`` or ``/p/{id}/v1/…``."""
    match = _ROOT.match(path)
    return match.group(1) if match else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
