"""Who may talk to the server: anybody where it has no keys, else whoever shows one of them.

A key comes as ``X-Thunder-Api-Key``, as ``Authorization: Bearer`` or as ``x-api-key``. The first form leaves
the client's own ``Authorization`` free for the engine behind us, so the answer says which header carried the
key: that one stops here, the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hmac import compare_digest
from typing import Final

from thunder_sdk import wire
from thunder_server.errors import ApiError

HEADERS: Final = (wire.API_KEY, "Authorization", "x-api-key")


class Keys:
    """The server's keys.

    >>> keys = Keys(["s3cret"])
    >>> keys.admit({"Authorization": "Bearer s3cret"}), keys.admit({}), Keys([]).admit({})
    ('Authorization', None, '')
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def admit(self, headers: Mapping[str, str]) -> str | None:
        """The header (of `HEADERS`) that showed a key, ``""`` where none is needed, ``None`` if none did."""
        if not self._keys:
            return ""
        for header in HEADERS:
            shown = headers.get(header)
            if shown is not None and self._known(
                _bearer(shown) if header == "Authorization" else shown.strip()
            ):
                return header
        return None

    def require(self, headers: Mapping[str, str]) -> str:
        """What `admit` says. Raises `ApiError` 401, which says how to give a key, where it says ``None``."""
        header = self.admit(headers)
        if header is None:
            shown = any(name in headers for name in HEADERS)
            raise ApiError(
                401,
                "invalid_api_key",
                f"{'This is no key of this server' if shown else 'This server needs a key'}; send one as "
                "Authorization: Bearer KEY, X-Thunder-Api-Key or x-api-key.",
            )
        return header

    def held_by(self, headers: Mapping[str, str]) -> list[str]:
        """Every header (of `HEADERS`) that holds a key of ours: none of them may go on to an engine."""
        if not self._keys:
            return []
        return [
            header
            for header in HEADERS
            if (shown := headers.get(header)) is not None
            and self._known(_bearer(shown) if header == "Authorization" else shown.strip())
        ]

    def _known(self, shown: str) -> bool:
        raw = shown.encode("utf-8", "surrogateescape")
        # Every key is compared in full, so that the time taken tells nothing about any of them.
        return sum(compare_digest(raw, key) for key in self._keys) > 0


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
