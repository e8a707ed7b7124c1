"""What people and clients are told about programs and backends."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from thunder_server.core.backend import Backend
from thunder_server.core.environment import Environment
from thunder_server.core.holdings import Holdings
from thunder_server.core.program import Chapter, Program, State
from thunder_server.core.resources import Holding, ResourceState
from thunder_server.core.world import Due, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a program is where it is, in plain words. ``free_tokens`` ``None``: not limited by tokens."""

    status: str
    reason: str
    waiting_for: str | None
    queue_position: int | None
    needed_tokens: int
    free_tokens: int | None
    decisions: list[Chapter]


def program_view(w: World, holdings: Holdings, program: Program, at: float) -> dict[str, object]:
    """The program object of the control plane; ``opened_at`` on the monotonic clock."""
    waits = [at - call.arrived_at for call in program.waiting_calls()]
    unaccounted = [at - call.arrived_at - call.waited_s for call in program.waiting_calls()]
    calls, tokens = program.call_totals, program.token_totals
    return {
        "id": program.id,
        "name": program.name,
        "group": program.group,
        "parent_id": program.parent_id,
        "priority": program.priority,
        "tags": list(program.tags),
        "metadata": dict(program.metadata),
        "status": program.status.value,
        "phase": program.phase.value,
        "expects_call": program.expects_call,
        "closing": program.closing,
        "outcome": program.outcome.value if program.outcome else None,
        "reason": program.reason,
        "generation": program.generation,
        "backend": program.backend_id,
        "tokens": {
            "context": program.footprint,
            "prompt": tokens.prompt,
            "completion": tokens.completion,
            "cached": tokens.cached,
        },
        "calls": {
            "total": calls.total,
            "running": program.running,
            "waiting": program.waiting,
            "failed": calls.failed,
            "cancelled": calls.cancelled,
        },
        "wait": {
            "current_s": max(waits, default=0.0),
            "total_s": program.waited_s + sum(unaccounted),
            "max_s": max([program.longest_wait_s, *waits]),
        },
        "acting": [
            {
                "call_id": call_id,
                "tool": acting.tool,
                "since_s": at - acting.started_at,
                "expected_s": acting.expected_s,
            }
            for call_id, acting in program.acting.items()
        ],
        "resources": resources_view(holdings, program),
        "lease_s": program.lease_s,
        "lease_left_s": _lease_left(w, program, at),
        "opened_at": program.opened_at,
    }


def resources_view(holdings: Holdings, program: Program) -> list[dict[str, object]]:
    """What a program holds. Its environment is one of them, also before there is anything to reclaim."""
    shown = [_resource(holding, program) for holding in holdings.of(program)]
    environment = program.environment
    if environment is not None and all(one["ref"] != environment.name for one in shown):
        shown.append(
            {
                "kind": "environment",
                "ref": environment.name,
                "host": environment.wanted.host,
                "keep": False,
                "state": environment.state.value,
            }
        )
    return shown


def _resource(holding: Holding, program: Program | None) -> dict[str, object]:
    """As long as a program lives, its environment's own state says more than that it is declared."""
    key, state = holding.thing.key, holding.state.value
    environment = program.environment if program is not None else None
    if environment is not None and key.ref == environment.name and holding.state is ResourceState.DECLARED:
        state = environment.state.value
    return {"kind": key.kind, "ref": key.ref, "host": key.host, "keep": holding.keep, "state": state}


def holding_view(holding: Holding, program: Program | None) -> dict[str, object]:
    """A line of the ledger; ``since`` on the monotonic clock. ``program``: who holds it, if known still."""
    owner = holding.owner
    return {
        "program_id": owner.program_id,
        "generation": owner.generation,
        **_resource(holding, program),
        "reason": holding.reason,
        "attempts": holding.thing.attempts,
        "since": holding.since,
    }


def environment_view(environment: Environment | None) -> dict[str, object]:
    """Where a program's environment stands; ``state`` ``None``: it wants none."""
    if environment is None:
        return {"state": None, "reason": "this program was opened without an environment"}
    return {
        "state": environment.state.value,
        "reason": environment.reason,
        "image": environment.image,
        "host": environment.wanted.host,
        "container_id": environment.container_id,
        "prepared_s": environment.prepared_s,
    }


def backend_view(backend: Backend) -> dict[str, object]:
    """The backend object of the control plane, but for ``url`` and ``engine``, which the core does not know.

    Where the engine does not tell, ``used_tokens``, ``running`` and ``waiting`` are what was sent to it.
    """
    report = backend.report
    footprint = sum(program.footprint for program in backend.programs)
    return {
        "id": backend.id,
        "healthy": backend.healthy,
        "draining": backend.draining,
        "models": None if backend.models is None else sorted(backend.models),
        "capacity_tokens": backend.capacity_tokens,
        "used_tokens": footprint if report.used_tokens is None else report.used_tokens,
        "active_programs": len(backend.programs),
        "running": backend.running if report.running is None else report.running,
        "waiting": report.waiting or 0,
        "hit_rate": report.hit_rate,
    }


def why(w: World, program: Program, at: float) -> Why:
    """Explain a program."""
    room = w.policy.room(w.fleet, program, at)
    free = None if room is None or isinf(room) else max(0, int(room))
    return Why(
        status=program.status.value,
        reason=program.reason,
        waiting_for=_waiting_for(w, program, free),
        queue_position=w.queue.position(program) if program in w.queue else None,
        needed_tokens=program.need,
        free_tokens=free,
        decisions=list(program.story),
    )


def _waiting_for(w: World, program: Program, free: int | None) -> str | None:
    if program.state is State.ENDED:
        return None
    if program.running:
        return "its own running calls" if program.waiting else None
    call = program.first_waiting()
    if call is None and program.acting:
        return "the end of " + ", ".join(acting.tool for acting in program.acting.values())
    if call is None:
        return "its next call"
    if program.held and program.environment is not None:
        return f"its environment ({program.environment.state.value}: {program.environment.reason})"
    if w.held_since is not None:
        return "the engines to get their new weights"
    if not w.fleet.open_to(program):
        model = call.request.model
        known = f" that serves {model!r}" if model and w.fleet.any_healthy() else ""
        return f"a healthy backend{known}"
    if free is None:
        return "a free slot on a backend"
    return f"room for {program.need} tokens; the most on any backend is {free}"


def _lease_left(w: World, program: Program, at: float) -> float:
    if program.state is State.ENDED:
        return 0.0
    due = w.deadlines.get((Due.LEASE, program))
    return program.lease_s if due is None else max(0.0, due - at)
