"""Clients that an adapter comes across: which of them may name the program in their calls."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import thunder_sdk as thunder


def tag(client: Any, program: thunder.Program) -> None:
    """Makes an openai client name the program, if it is one and its base URL is the program's server.

    Clients of anybody else, say of a public provider to fall back to, stay as they are.
    """
    if hasattr(client, "_prepare_request") and reaches(client.base_url, program):
        thunder.wrap_openai(client)


def reaches(url: object, program: thunder.Program) -> bool:
    """Whether a call to `url` goes to the program's server."""
    return _origin(url) == _origin(program.base_url)


def _origin(url: object) -> tuple[str, str | None, int | None]:
    parts = urlsplit(str(url))
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
