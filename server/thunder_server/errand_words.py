"""Errands of the core in the words of workers, and their results in the core's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from thunder_sdk import wire
from thunder_server.core import decisions as d
from thunder_server.core import resource_events as e
from thunder_server.core.events import Event

Unix = Callable[[float], float]

_ENDS: Final = {
    wire.WorkEnd.DONE: e.ReclaimEnd.GONE,
    wire.WorkEnd.ABSENT: e.ReclaimEnd.GONE,
    wire.WorkEnd.SPARED: e.ReclaimEnd.SPARED,
    wire.WorkEnd.FAILED: e.ReclaimEnd.FAILED,
}


def about(errand: d.Errand, unix: Unix) -> tuple[wire.Work, dict[str, object]]:
    """What is to be done, and the fields of the task that say to what."""
    fields: dict[str, object] = {
        "program_id": errand.program_id,
        "generation": errand.generation,
        "attempt": 1,
    }
    match errand:
        case d.Observe():
            named = {"kind": errand.kind, "ref": errand.ref, "claims": _claims(errand.claims, unix)}
            return wire.Work.OBSERVE, fields | named
        case d.Reclaim():
            named = {"kind": errand.kind, "ref": errand.ref, "claims": _claims(errand.claims, unix)}
            seen = {"pin": errand.pin, "brought": errand.brought}
            known = {key: value for key, value in seen.items() if value is not None}
            return wire.Work.RECLAIM, fields | named | known | {"attempt": errand.attempt}
        case d.Survey():
            return wire.Work.SURVEY, fields
        case d.PrepareEnvironment():
            spec = {"name": errand.name, "environment": dict(errand.spec), "attempt": errand.attempt}
            return wire.Work.PREPARE, fields | spec
        case d.Hibernate():
            return wire.Work.HIBERNATE, fields | {"ref": errand.container_id}
        case d.Wake():
            return wire.Work.WAKE, fields | {"ref": errand.container_id}
        case _:
            raise TypeError(f"{type(errand).__name__} is no work for anybody")


def _claims(claims: tuple[d.Claim, ...], unix: Unix) -> list[wire.Claim]:
    told: list[wire.Claim] = []
    for claim in claims:
        entry = wire.Claim(
            program_id=claim.program_id, opened_at=unix(claim.opened_at), ended_at=unix(claim.ended_at)
        )
        if claim.next_opened_at is not None:
            entry["next_opened_at"] = unix(claim.next_opened_at)
        told.append(entry)
    return told


def outcome(errand: d.Errand, result: wire.TaskResult, at: float, unix: Unix) -> Event | None:
    """What has happened, for the core; ``None`` if that is nothing to it."""
    end = wire.WorkEnd(result["end"])
    done = end is wire.WorkEnd.DONE
    reason = result.get("error") or ""
    match errand:
        case d.Reclaim():
            return e.ReclaimEnded(
                at=at,
                kind=errand.kind,
                ref=errand.ref,
                host=errand.host,
                end=_ENDS[end],
                reason=reason,
                retryable=result.get("retryable", True),
            )
        case d.Observe():
            return e.ResourceObserved(
                at=at,
                kind=errand.kind,
                ref=errand.ref,
                host=errand.host,
                pin=result.get("pin"),
                brought=result.get("brought"),
            )
        case d.Survey():
            objects = found(result, at - unix(at)) if done else None
            return e.Surveyed(at=at, host=errand.host, objects=objects)
    whose: dict[str, Any] = {"at": at, "program_id": errand.program_id, "generation": errand.generation}
    match errand, end:
        case d.PrepareEnvironment(), wire.WorkEnd.DONE:
            return e.EnvironmentPrepared(
                **whose,
                container_id=result.get("container_id", errand.name),
                seconds=result.get("seconds", 0.0),
            )
        case d.Hibernate(), wire.WorkEnd.DONE:
            return e.EnvironmentHibernated(**whose)
        case (d.Wake(), wire.WorkEnd.DONE) | (d.Hibernate(), wire.WorkEnd.FAILED | wire.WorkEnd.SPARED):
            return e.EnvironmentWoken(**whose)
        case _:
            return e.EnvironmentFailed(
                **whose, reason=reason or "its container is gone", retryable=result.get("retryable", False)
            )


def found(result: wire.TaskResult, offset: float) -> tuple[e.Found, ...]:
    """The objects that a survey found; ``offset`` takes Unix time to the server's own clock."""
    return tuple(
        e.Found(
            kind=one["kind"],
            ref=one["ref"],
            name=one["name"],
            program_id=one["program_id"],
            created_at=one["created_at"] + offset,
        )
        for one in result.get("objects", [])
    )
