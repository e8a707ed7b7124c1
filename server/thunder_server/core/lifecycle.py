"""The life of programs: how they open, stay alive, close and are forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from thunder_server.core.calls import Calls
from thunder_server.core.decisions import Forget, Opened, PhaseChanged, Terminate
from thunder_server.core.environments import Environments
from thunder_server.core.events import (
    ActingFinished,
    ActingStarted,
    CallArrived,
    ClientEvent,
    HeartbeatReceived,
    Outcome,
    ProgramClosed,
    ProgramOpened,
    ResourceDeclared,
    ResourceReleased,
)
from thunder_server.core.ledger import Ledger
from thunder_server.core.orphans import Orphans
from thunder_server.core.placement import Placement
from thunder_server.core.program import ACTING_BLOCKS, Acting, Phase, Program, State
from thunder_server.core.relations import Relations
from thunder_server.core.resource_events import ProgramRecovered
from thunder_server.core.resources import Owner, ThingKey
from thunder_server.core.world import Due, World

REASONS = {
    Outcome.SUCCESS: "it was closed",
    Outcome.ERROR: "it was closed after an error",
    Outcome.DROPPED: "it was dropped",
    Outcome.LEASE_EXPIRED: "its lease ran out: no call and no event came",
}

MERGED = frozenset({"name", "parent_id", "group", "priority", "tags", "metadata"}) | {
    "expected_context_tokens",
    "lease_s",
    "max_wait_s",
}
"""What a ``PUT`` may set; ``None`` counts as not given."""


RETURN_S = 6.0
"""After a restart every program has at least this long to be heard of: clients try again every 5 s."""


class Lifecycle:
    """Opens, renews, closes and forgets programs."""

    def __init__(
        self,
        world: World,
        placement: Placement,
        calls: Calls,
        ledger: Ledger,
        environments: Environments,
        orphans: Orphans,
    ) -> None:
        self._w = world
        self._placement = placement
        self._calls = calls
        self._ledger = ledger
        self._environments = environments
        self._orphans = orphans
        self._relations = Relations(world)

    def happened(self, event: ClientEvent | ProgramOpened | ProgramClosed | ProgramRecovered) -> None:
        """Clients have spoken, or an earlier run of the server has left word of them."""
        match event:
            case ClientEvent():
                self.reported(event)
            case ProgramOpened():
                self.opened(event)
            case ProgramClosed():
                self.closed(event)
            case ProgramRecovered():
                self.recovered(event)
            case _:
                assert_never(event)

    # --- opening

    def opened(self, event: ProgramOpened) -> None:
        """A ``PUT``."""
        began_at = self._w.now - event.age_s
        program = self._open(event.program_id)
        if program is None:
            program = self._new(event.program_id, self._w.config.default_lease_s, began_at=began_at)
        program.began_at = min(program.began_at, began_at)
        self._merge(program, event.fields)
        if event.environment is not None:
            self._environments.wanted(program, event.environment)

    def for_call(self, event: CallArrived) -> Program:
        """The program that a call belongs to, opened by it if need be."""
        config = self._w.config
        if event.program_id is None:
            program = self._new(event.anonymous_id, config.auto_lease_s, anonymous=True)
        else:
            program = self._open(event.program_id) or self._new(event.program_id, config.auto_lease_s)
        given = {"parent_id": event.parent_id, "group": event.group, "priority": event.priority}
        self._merge(program, {name: value for name, value in given.items() if value is not None})
        return program

    def _open(self, program_id: str) -> Program | None:
        program = self._w.programs.get(program_id)
        return None if program is None or _is_over(program) else program

    def recovered(self, event: ProgramRecovered) -> None:
        """An earlier run of the server knew it, or a generation before the one it knew last."""
        w = self._w
        known = w.programs.get(event.program_id)
        if known is not None:
            self._ledger.recover(
                Owner(
                    program_id=event.program_id,
                    generation=event.generation,
                    opened_at=event.opened_at,
                    ended_at=known.began_at if event.ended_at is None else event.ended_at,
                    next_opened_at=known.began_at,
                    shown=False,
                ),
                event.resources,
            )
            return
        program = self._new(
            event.program_id,
            w.config.default_lease_s,
            generation=event.generation,
            began_at=event.opened_at,
        )
        program.opened_at = event.opened_at
        self._merge(program, event.fields)
        program.seen_at += max(0.0, RETURN_S - program.lease_s)
        self._ledger.recover(self._ledger.holdings.record(program), event.resources)
        if event.ended_at is not None:
            program.ended_at = event.ended_at
            self._drop(program, event.outcome)
        elif event.environment is not None:
            self._environments.recovered(program, event.environment, event.container_id)

    def _new(
        self,
        program_id: str,
        lease_s: float,
        *,
        anonymous: bool = False,
        generation: int | None = None,
        began_at: float | None = None,
    ) -> Program:
        w = self._w
        before = w.programs.get(program_id)
        last = before.generation if before else self._ledger.holdings.last_generation(program_id)
        program = Program(
            id=program_id,
            generation=generation or last + 1,
            opened_at=w.now,
            began_at=w.now if began_at is None else began_at,
            acting_since=w.now,
            lease_s=lease_s,
            anonymous=anonymous,
            gaps=w.gaps,
            previous=before if before is not None and before.closing else None,
        )
        w.programs[program_id] = program
        w.live[program] = None
        self._ledger.opened(program)
        w.deadlines.clear((Due.FORGET, program_id))
        w.counters.programs_opened += 1
        w.tell(program, Opened(program_id=program_id, generation=program.generation), "opened")
        w.touch(program)
        return program

    def _merge(self, program: Program, fields: Mapping[str, Any]) -> None:
        group = program.group
        for name in MERGED & fields.keys():
            if (value := fields[name]) is not None:
                setattr(program, name, tuple(value) if name == "tags" else value)
        self._relations.changed(program, group)
        self._renew(program)

    def _renew(self, program: Program) -> None:
        program.seen_at = self._w.now
        self._w.touch(program)

    # --- what clients report

    def reported(self, event: ClientEvent) -> None:
        """One event of a client; ignored if it is old, or for a program that is over."""
        w = self._w
        known = w.programs.get(event.program_id)
        if known is not None and _is_over(known):
            self._reported_late(known, event)
            return
        program = known or self._new(event.program_id, w.config.auto_lease_s)
        if event.seq <= program.seqs.get(event.emitter, -1):
            return
        program.seqs[event.emitter] = event.seq
        self._renew(program)
        match event:
            case ActingStarted():
                self._acting_started(program, event)
            case ActingFinished():
                self._acting_finished(program, event)
            case ResourceDeclared() | ResourceReleased():
                self._holds(program, event)
            case HeartbeatReceived():
                pass
            case _:
                raise TypeError(f"{type(event).__name__} is none of the events that clients report")

    def _holds(self, program: Program, event: ResourceDeclared | ResourceReleased) -> None:
        key = ThingKey(event.kind, event.ref, event.host)
        if isinstance(event, ResourceDeclared):
            self._ledger.declare(program, key, keep=event.keep)
        else:
            self._ledger.release(program, key)

    def _reported_late(self, program: Program, event: ClientEvent) -> None:
        """The program is over, and of all that comes only what it holds matters: that is to go as well."""
        fresh = event.seq > program.seqs.get(event.emitter, -1)
        if fresh and isinstance(event, ResourceDeclared | ResourceReleased):
            program.seqs[event.emitter] = event.seq
            self._holds(program, event)

    def _acting_started(self, program: Program, event: ActingStarted) -> None:
        w = self._w
        if len(program.acting) >= ACTING_BLOCKS:
            del program.acting[next(iter(program.acting))]
        program.acting[event.call_id] = Acting(
            tool=event.tool,
            started_at=w.now,
            expected_s=event.expected_s,
            usual=w.tools.of(event.tool),
        )
        changed = PhaseChanged(
            program_id=program.id,
            generation=program.generation,
            phase=program.phase.value,
            tool=event.tool,
        )
        w.tell(program, changed, f"runs {event.tool}")

    def _acting_finished(self, program: Program, event: ActingFinished) -> None:
        block = program.acting.pop(event.call_id, None)
        if block is not None:
            program.tool_finished_at = self._w.now
            block.usual.learn(self._w.now - block.started_at)
            self._w.freed |= program.state is State.QUEUED  # there may be room for it already

    # --- closing

    def closed(self, event: ProgramClosed) -> None:
        """A ``DELETE``: the first one wins, except that dropping cuts short what closing lets finish."""
        program = self._w.programs.get(event.program_id)
        if program is None or program.state is State.ENDED:
            return
        if event.generation is not None and event.generation < program.generation:
            return
        if event.outcome in (Outcome.DROPPED, Outcome.LEASE_EXPIRED):
            self._drop(program, event.outcome)
        elif program.ending is None:
            program.ending = event.outcome
            self._w.note(program, "close", f"{REASONS[event.outcome]}; its calls finish")
            self._w.touch(program)

    def lease_expired(self, program: Program) -> None:
        self._drop(program, Outcome.LEASE_EXPIRED)

    def _drop(self, program: Program, outcome: Outcome) -> None:
        program.ending = outcome
        self._calls.drop(program, f"program {program.id} is terminated: {REASONS[outcome]}")
        self._w.touch(program)

    def forgotten(self, program_id: str) -> None:
        """Nothing is kept of an id that ended long ago."""
        self._ledger.holdings.forget(program_id, self._w.programs.pop(program_id).generation)
        self._w.out.append(Forget(program_id=program_id))

    # --- consequences

    def settle(self) -> None:
        """Draw the consequences of what happened to the touched programs: phase, leaving, end, lease."""
        w = self._w
        while w.touched:
            touched, w.touched = w.touched, {}
            for program in touched:
                self._settle(program)

    def _settle(self, program: Program) -> None:
        w = self._w
        phase = Phase.REASONING if program.calls else Phase.ACTING
        if phase is not program.phase:
            program.phase = phase
            program.acting_since = program.seen_at = w.now
            changed = PhaseChanged(program_id=program.id, generation=program.generation, phase=phase.value)
            w.out.append(changed)
        self._placement.charge(program)
        self._environments.settle(program)
        if program.ending is not None and not program.calls:
            self._terminate(program, program.ending)
            return
        if program.state is State.MARKED and not program.running:
            self._placement.leave_marked(program)
        lease = (Due.LEASE, program)
        if program.calls:
            w.deadlines.clear(lease)
        else:
            w.deadlines.set(lease, program.seen_at + program.lease_s)

    def _terminate(self, program: Program, outcome: Outcome) -> None:
        w = self._w
        program.outcome = outcome
        program.ended_at = w.now if program.ended_at is None else program.ended_at
        program.acting.clear()
        program.tool_finished_at = None
        w.deadlines.clear((Due.LEASE, program))
        self._placement.end(program)
        del w.live[program]
        w.counters.programs_ended[outcome] += 1
        reason = REASONS[outcome]
        terminate = Terminate(
            program_id=program.id, generation=program.generation, outcome=outcome, reason=reason
        )
        w.tell(program, terminate, reason)
        self._environments.ended(program)
        self._ledger.ended(program)
        self._orphans.ended(program)
        self._relations.ended(program)
        program.previous = None
        if w.programs.get(program.id) is not program:
            self._ledger.holdings.forget(program.id, program.generation)
            return
        if program.anonymous:
            self.forgotten(program.id)
        else:
            w.deadlines.set((Due.FORGET, program.id), w.now + w.config.keep_terminated_s)


def _is_over(program: Program) -> bool:
    """Closed, even if its last calls are still under way: the id is free for the next generation."""
    return program.ending is not None
