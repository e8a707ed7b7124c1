"""The LiteLLM proxy in front of a thunder server: ids that clients send to the proxy arrive at the server.

In the proxy's ``config.yaml``, with ``THUNDER_BASE_URL`` naming the server::

    litellm_settings:
      callbacks: thunder_integrations.litellm_proxy.handler

A client names its program as it would to the server itself: by headers, or by ``program_id`` in the body or
its ``metadata``. Calls of one team, user or key form a group, and their sessions stay apart from others'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import thunder_sdk as thunder
from thunder_integrations.litellm import Tagger

_PROGRAM: Final = "x-thunder-program-id"
_SESSION: Final = "x-session-id"
_GROUP: Final = "x-thunder-group"
_PRIORITY: Final = "x-thunder-priority"
_RETRY: Final = "x-thunder-retry"
_ATTEMPT: Final = "x-stainless-retry-count"  # of the openai client in front of the proxy
_KEY_PRIORITY: Final = "thunder_priority"
_FORWARDED: Final = ("x-thunder-", "x-dynamo-")
# What names a session, in the order in which the server looks; clients of one tenant cannot guess another's.
_SESSIONS: Final = (
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    _SESSION,
    "session-id",
)
_NOT_A_TENANT: Final = "default_user_id"  # whoever uses the master key


class Handler(Tagger):
    """The callback. Whose call it is, is read when it comes in, and written where it goes out."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Reads a call's identity, and takes our fields out of its body: strict engines know none of them."""
        sent = {name.lower(): value for name, value in _headers(data).items()}
        said = _take_program_id(data)
        tenant = _tenant(user_api_key_dict)
        ours = {name: value for name, value in sent.items() if value and name.startswith(_FORWARDED)}
        ours.pop("x-thunder-api-key", None)
        if _PROGRAM not in ours:
            program = said or _session(sent, data, tenant)
            if program is not None:
                ours[_PROGRAM] = program
        if _PROGRAM in ours:
            ours[_SESSION] = ours[_PROGRAM]  # for whatever stands behind the server
        if tenant is not None:
            ours.setdefault(_GROUP, tenant)
        priority = _key_priority(user_api_key_dict)
        if priority is not None:
            ours.setdefault(_PRIORITY, str(priority))
        if sent.get(_ATTEMPT, "0") != "0":
            ours.setdefault(_RETRY, "1")
        _identity.set(ours)
        return data

    def headers_to(self, url: str) -> dict[str, str]:
        """What the call of the moment says of its program, if `url` is the server's."""
        ours = _identity.get()
        return ours if ours and _anybody.headers_to(url) else {}


_identity: ContextVar[dict[str, str] | None] = ContextVar("thunder_litellm_proxy", default=None)
_anybody: Final = thunder.program(parent=None)  # never opened: asks where headers may go
handler: Final = Handler()


def _headers(data: Mapping[str, Any]) -> Mapping[str, str]:
    """The client's headers, as the proxy keeps them with a call."""
    request = data.get("proxy_server_request") or {}
    headers: Mapping[str, str] = request.get("headers") or {}
    return headers


def _take_program_id(data: dict[str, Any]) -> str | None:
    """The id in the body; none of its places keeps it."""
    found = [data.pop("program_id", None)]
    for name in ("extra_body", "metadata", "litellm_metadata"):
        place = data.get(name)
        if isinstance(place, dict) and "program_id" in place:
            found.append(place.pop("program_id"))
            if not place:
                del data[name]
    return next((str(value) for value in found if value not in (None, "")), None)


def _session(sent: Mapping[str, str], data: Mapping[str, Any], tenant: str | None) -> str | None:
    """A program for the session that a call names. Sessions of tenants are kept apart."""
    named = (*(sent.get(name) for name in _SESSIONS), data.get("litellm_session_id"))
    session = next(filter(None, named), None)
    if session is None:
        return None
    return _id(str(session) if tenant is None else f"{tenant}:{session}")


def _tenant(key: Any) -> str | None:
    """Who pays: the key's team, else its user, else its own name."""
    who = key.team_id or (key.user_id if key.user_id != _NOT_A_TENANT else None) or key.key_alias
    return _id(str(who)) if who else None


def _key_priority(key: Any) -> object:
    """``thunder_priority`` in the metadata of a key or its team."""
    for metadata in (key.metadata, key.team_metadata):
        if isinstance(metadata, dict) and _KEY_PRIORITY in metadata:
            return metadata[_KEY_PRIORITY]
    return None


def _id(text: str) -> str:
    """`text` if it is an id, else one made of it, as the server does with sessions."""
    try:
        return thunder.program(program_id=text, parent=None).id
    except thunder.ThunderConfigError:
        return f"h_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
