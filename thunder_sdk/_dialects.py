"""How each system that understands programs wants to be told: headers on every call, fields for bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from thunder_sdk import wire


@dataclass(frozen=True, slots=True)
class Identity:
    """What a call says about its program. ``max_wait`` is in seconds; None means not set."""

    id: str
    parent_id: str | None = None
    group: str | None = None
    priority: int | None = None
    max_wait: float | None = None


def _thunder(it: Identity) -> dict[str, str]:
    headers = {wire.PROGRAM_ID: it.id, wire.SESSION_ID: it.id}
    if it.parent_id is not None:
        headers[wire.PARENT_ID] = it.parent_id
    if it.group is not None:
        headers[wire.GROUP] = it.group
    if it.priority is not None:
        headers[wire.PRIORITY] = str(it.priority)
    if it.max_wait is not None:
        headers[wire.MAX_WAIT] = f"{it.max_wait:.15g}"
    return headers


def _dynamo(it: Identity) -> dict[str, str]:
    headers = {wire.DYNAMO_SESSION_ID: it.id}
    if it.parent_id is not None:
        headers[wire.DYNAMO_PARENT_SESSION_ID] = it.parent_id
    return headers


def _dynamo_body(it: Identity) -> dict[str, object]:
    return {} if it.priority is None else {"nvext": {"agent_hints": {"priority": it.priority}}}


def _agentic_context(it: Identity) -> dict[str, object]:
    context: dict[str, object] = {"program_id": it.id}
    if it.parent_id is not None:
        context["parent_program_id"] = it.parent_id
    if it.priority is not None:
        context["priority"] = it.priority
    return {"vllm_xargs": {"agentic_context": json.dumps(context)}}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row of the table."""

    headers: Callable[[Identity], dict[str, str]]
    body: Callable[[Identity], dict[str, object]]


def _no_body(_: Identity) -> dict[str, object]:
    return {}


OURS: Final = "thunder"
DIALECTS: Final[Mapping[str, Dialect]] = {
    OURS: Dialect(_thunder, _no_body),
    "dynamo": Dialect(_dynamo, _dynamo_body),
    "vllm-router": Dialect(lambda it: {wire.SESSION_ID: it.id}, _agentic_context),
    "thunderagent": Dialect(lambda it: {wire.SESSION_ID: it.id}, lambda it: {"program_id": it.id}),
    "smg": Dialect(lambda it: {wire.SMG_ROUTING_KEY: it.id}, _no_body),
    "llm-d": Dialect(
        lambda it: {wire.LLM_D_SESSION_ID: it.id, wire.LLM_D_FAIRNESS_ID: it.group or it.id}, _no_body
    ),
}


def headers_of(identity: Identity, dialects: tuple[str, ...]) -> dict[str, str]:
    """Headers for all `dialects` at once; one spelling where two differ only in case."""
    merged: dict[str, tuple[str, str]] = {}
    for dialect in dialects:
        for name, value in DIALECTS[dialect].headers(identity).items():
            merged.setdefault(name.lower(), (name, value))
    return dict(merged.values())


def body_of(identity: Identity, dialects: tuple[str, ...]) -> dict[str, object]:
    """Fields for a request body (``extra_body``) for all `dialects` at once; no two share one."""
    body: dict[str, object] = {}
    for dialect in dialects:
        body |= DIALECTS[dialect].body(identity)
    return body
