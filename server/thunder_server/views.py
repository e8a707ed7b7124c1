"""What the control plane shows: the core's state in SPEC's words, with Unix times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_server.core.program import Program
from thunder_server.core.scheduler import Scheduler
from thunder_server.core.views import Why
from thunder_server.runtime import Runtime

Unix = Callable[[float], float]


def program(scheduler: Scheduler, shown: Program, at: float, unix: Unix) -> dict[str, Any]:
    """One program; ``opened_at`` is Unix seconds, everything else as the core says it."""
    return scheduler.view(shown, at) | {"opened_at": unix(shown.opened_at)}


def never_opened(program_id: str) -> dict[str, Any]:
    """What closing an id that nobody knows answers: it is over, and it never was anything."""
    return {
        "id": program_id,
        "name": None,
        "group": None,
        "parent_id": None,
        "priority": 0,
        "tags": [],
        "metadata": {},
        "status": "terminated",
        "phase": "acting",
        "expects_call": False,
        "closing": False,
        "outcome": None,
        "reason": "not known here: never opened, or over for more than ten minutes",
        "generation": 0,
        "backend": None,
        "tokens": {"context": 0, "prompt": 0, "completion": 0, "cached": 0},
        "calls": {"total": 0, "running": 0, "waiting": 0, "failed": 0, "cancelled": 0},
        "wait": {"current_s": 0.0, "total_s": 0.0, "max_s": 0.0},
        "acting": [],
        "resources": [],
        "lease_s": 0.0,
        "lease_left_s": 0.0,
        "opened_at": None,
    }


def why(told: Why, unix: Unix) -> dict[str, Any]:
    """Why a program stands where it stands."""
    return {
        "status": told.status,
        "reason": told.reason,
        "waiting_for": told.waiting_for,
        "queue_position": told.queue_position,
        "needed_tokens": told.needed_tokens,
        "free_tokens": told.free_tokens,
        "decisions": [
            {"at": unix(at), "decision": decision, "reason": reason}
            for at, decision, reason in told.decisions
        ],
    }


def backend(runtime: Runtime, backend_id: str) -> dict[str, Any]:
    """One backend: where it is, and what the core knows of it."""
    spec = runtime.backends[backend_id].spec
    known = runtime.scheduler.backends[backend_id]
    return {"id": backend_id, "url": spec.url, "engine": spec.engine} | runtime.scheduler.backend_view(known)
