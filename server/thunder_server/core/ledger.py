"""The ledger of resources: whose end condemns what, in which order it goes, and what became of it.

A program's things go one rank of ``TEARDOWN`` after the other; within a rank side by side. A removal that
fails is tried again with back-off and given up after ``ATTEMPTS``; then, and where nobody serves a host, the
next rank does not wait any longer. Nothing is tried twice at a time, and nothing again once it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder_server.core.decisions import Observe, Reclaim, ResourceChanged
from thunder_server.core.events import (
    Found,
    ProgramRecovered,
    ReclaimEnd,
    ReclaimEnded,
    ResourceObserved,
)
from thunder_server.core.program import Program
from thunder_server.core.resources import (
    DOCKER,
    OPEN,
    REMEMBERED,
    TRANSITIONS,
    Deed,
    Errand,
    Holding,
    Owner,
    ResourceState,
    Thing,
    ThingKey,
)
from thunder_server.core.world import Due, World

ATTEMPTS = 6
"""So often a removal is tried before it is given up."""
BACKOFF_S = 0.5
"""Before the second attempt; doubled before each further one."""
UNSERVED_S = 600.0
"""How long a thing waits for somebody to serve its host before it counts as failed."""


class Ledger:
    """Who holds what. ``hosts`` are those that somebody serves."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.hosts: dict[str | None, None] = {}
        self._owners: dict[Owner, None] = {}
        self._latest: dict[tuple[str, int], Owner] = {}  # an id that was forgotten begins at 1 again
        self._things: dict[ThingKey, Thing] = {}

    # --- what programs say

    def declare(self, program: Program, key: ThingKey, *, keep: bool) -> Holding:
        """The program holds it from now on; if the program is over, it is reclaimed at once."""
        owner = self.record(program)
        thing = self._things.get(key)
        if thing is None:
            thing = self._things[key] = Thing(key=key)
        holding = owner.holdings.get(key)
        if holding is None or holding.thing is not thing:
            holding = self._hold(thing, owner, keep=keep)
            self._tell(holding, "declared")
        else:
            holding.keep = keep
            if holding.take(Deed.DECLARE):
                self._tell(holding, "declared again")
        if owner.ended_at is None:
            self._adopt(thing, owner)
            self._observe(thing, owner)
        else:
            self._leave(owner, [holding])
        return holding

    def release(self, program: Program, key: ThingKey) -> None:
        """The program gave it back; what it never declared is none of ours."""
        owner = self._owner(program)
        holding = None if owner is None else owner.holdings.get(key)
        if holding is None or holding.thing.errand is Errand.OUT:
            return
        if holding.take(Deed.RELEASE):
            thing = holding.thing
            self._unplan(thing)
            self._tell(holding, "the program gave it back")
            self._let_go(thing)
            self._close(thing)

    def opened(self, program: Program) -> None:
        """A generation begins: what is younger than it is not its predecessor's."""
        before = self._latest.get((program.id, program.generation - 1))
        if before is not None:
            before.next_opened_at = program.began_at

    def ended(self, program: Program) -> None:
        """Reclaim what only this program held."""
        owner = self._owner(program)
        if owner is not None:
            owner.ended_at = self._w.now
            self._leave(owner, list(owner.holdings.values()))

    def forget(self, program: Program) -> None:
        """The program is not shown any longer; what is still to be done about its things remains."""
        owner = self._owner(program)
        if owner is not None:
            for holding in [h for h in owner.holdings.values() if h.state not in REMEMBERED]:
                del owner.holdings[holding.thing.key]
                holding.thing.holdings.pop(owner, None)
            del self._latest[program.id, program.generation]
            if not owner.holdings:
                del self._owners[owner]

    def _owner(self, program: Program) -> Owner | None:
        return self._latest.get((program.id, program.generation))

    def record(self, program: Program) -> Owner:
        """The ledger's record of this generation, begun if need be."""
        owner = self._owner(program)
        if owner is None:
            owner = Owner(
                program_id=program.id,
                generation=program.generation,
                opened_at=program.began_at,
                ended_at=program.ended_at,
            )
            self._owners[owner] = None
            self._latest[program.id, program.generation] = owner
        elif owner.ended_at is None:
            owner.opened_at = min(owner.opened_at, program.began_at)
        return owner

    def found(self, host: str | None, found: Found, owner: Owner) -> None:
        """A labelled object that nobody declared, of a program that is over: reclaim it."""
        key = ThingKey(found.kind, found.ref, host)
        if key not in self._things:
            self._owners[owner] = None
            thing = self._things[key] = Thing(key=key, pin=found.ref)
            holding = self._hold(thing, owner, keep=False)
            self._tell(holding, "found by its label")
            self._leave(owner, [holding])

    def recover(self, program: Program, event: ProgramRecovered) -> None:
        """What an earlier run of the server knew that this program holds."""
        owner = self.record(program)
        for known in event.resources:
            key = ThingKey(known.kind, known.ref, known.host)
            thing = self._things.setdefault(key, Thing(key=key, pin=known.pin, brought=known.brought))
            self._tell(self._hold(thing, owner, keep=known.keep), "known from before the server's start")
        if owner.ended_at is not None:
            self._leave(owner, list(owner.holdings.values()))

    def _hold(self, thing: Thing, owner: Owner, *, keep: bool) -> Holding:
        holding = Holding(owner=owner, thing=thing, keep=keep, since=self._w.now)
        owner.holdings[thing.key] = thing.holdings[owner] = holding
        return holding

    # --- whose end condemns what

    def _leave(self, owner: Owner, holdings: list[Holding]) -> None:
        """The owner is over: for each thing, others hold it still, somebody wants it kept, or it goes."""
        for holding in holdings:
            if holding.state is not ResourceState.DECLARED:
                continue
            thing = holding.thing
            left = thing.in_state(ResourceState.DECLARED, ResourceState.SHARED)
            if any(other.owner.ended_at is None for other in left):
                self._step([holding], Deed.LEAVE, "another program holds it still")
            else:
                self._fate(thing, left, owner)
        self._advance(owner)

    def _fate(self, thing: Thing, left: list[Holding], owner: Owner) -> None:
        """Nobody holds it any longer."""
        if any(holding.keep for holding in left):
            self._step(left, Deed.KEEP, "it was declared to be kept")
            self._close(thing)
            return
        self._step(left, Deed.CONDEMN, "its program is over")
        thing.trigger = owner
        thing.attempts = 0
        if thing.errand is not Errand.PARKED:
            owner.pending[thing] = None

    def _adopt(self, thing: Thing, owner: Owner) -> None:
        """Somebody holds a thing that was to be removed: if nobody is at it, it stays."""
        condemned = thing.in_state(ResourceState.RECLAIMING, ResourceState.FAILED)
        if condemned and thing.errand is not Errand.OUT:
            self._unplan(thing)
            self._step(condemned, Deed.LEAVE, f"{owner.program_id} holds it now")

    def _let_go(self, thing: Thing) -> None:
        """A holder gave a thing back; if only those are left who are over, it goes on their account."""
        shared = thing.in_state(ResourceState.SHARED)
        if shared and not thing.in_state(ResourceState.DECLARED):
            owner = shared[-1].owner
            self._fate(thing, shared, owner)
            self._advance(owner)

    # --- in which order it goes

    def _advance(self, owner: Owner) -> None:
        """Begin with whatever of the lowest rank has not begun."""
        if owner.pending:
            rank = min(thing.rank for thing in owner.pending)
            for thing in [thing for thing in owner.pending if thing.rank == rank]:
                if thing.errand is Errand.NONE and not thing.busy:
                    self._send(thing)

    def _send(self, thing: Thing) -> None:
        w, key = self._w, thing.key
        thing.sent = thing.in_state(ResourceState.RECLAIMING)
        if key.kind == "port":
            self._succeed(thing, "free again: its lock ends with whoever holds it")
            return
        if key.host not in self.hosts:
            thing.errand = Errand.PARKED
            w.deadlines.set((Due.RECLAIM, thing), w.now + UNSERVED_S)
            self._settled(thing)
            return
        thing.errand = Errand.OUT
        thing.attempts += 1
        assert thing.trigger is not None
        w.out.append(
            Reclaim(
                program_id=thing.trigger.program_id,
                generation=thing.trigger.generation,
                host=key.host,
                kind=key.kind,
                ref=key.ref,
                claims=tuple(holding.owner.claim(w.now) for holding in thing.sent),
                attempt=thing.attempts,
                pin=thing.pin,
                brought=thing.brought,
            )
        )

    def _settled(self, thing: Thing) -> None:
        """The next ranks of those on whose account it went need not wait for it any longer."""
        for owner in {holding.owner: None for holding in thing.sent}:
            self._strike(owner, thing)

    def _strike(self, owner: Owner, thing: Thing) -> None:
        if thing in owner.pending:
            del owner.pending[thing]
            self._advance(owner)

    def _unplan(self, thing: Thing) -> None:
        thing.errand = Errand.NONE
        self._w.deadlines.clear((Due.RECLAIM, thing))
        if thing.trigger is not None:
            self._strike(thing.trigger, thing)

    def _close(self, thing: Thing) -> None:
        """If nothing is to be done about it any more, whoever declares it again speaks of another one."""
        if not thing.in_state(*OPEN) and self._things.get(thing.key) is thing:
            del self._things[thing.key]

    def made(self, key: ThingKey, *, busy: bool) -> None:
        """It is being made, and cannot be removed meanwhile; or no longer so."""
        thing = self._things.get(key)
        if thing is not None:
            thing.busy = busy
            if not busy and thing.trigger is not None:
                self._advance(thing.trigger)

    # --- what became of it

    def reclaim_ended(self, event: ReclaimEnded) -> None:
        """An attempt is over. One that nobody asked for is ignored."""
        thing = self._things.get(ThingKey(event.kind, event.ref, event.host))
        if thing is None or thing.errand is not Errand.OUT:
            return
        thing.errand = Errand.NONE
        match event.end:
            case ReclaimEnd.GONE:
                self._succeed(thing, event.reason or "removed")
            case ReclaimEnd.SPARED:
                self._finish(thing, Deed.SPARE, event.reason)
            case _ if thing.in_state(ResourceState.DECLARED):
                self._finish(thing, Deed.LEAVE, f"not removed ({event.reason}), and held again now")
            case _ if event.retryable and thing.attempts < ATTEMPTS:
                thing.errand = Errand.BACKOFF
                pause = BACKOFF_S * 2 ** (thing.attempts - 1)
                self._w.deadlines.set((Due.RECLAIM, thing), self._w.now + pause)
            case _:
                self._finish(thing, Deed.GIVE_UP, event.reason)

    def _succeed(self, thing: Thing, reason: str) -> None:
        thing.pin = thing.brought = None
        self._finish(thing, Deed.SUCCEED, reason)

    def _finish(self, thing: Thing, deed: Deed, reason: str) -> None:
        """The removal is over, for now or for good. Who let go of the thing meanwhile has it tried anew."""
        self._step(thing.sent, deed, reason)
        self._w.counters.resources_ended[TRANSITIONS[ResourceState.RECLAIMING, deed]] += 1
        self._settled(thing)
        later = thing.in_state(ResourceState.RECLAIMING)
        if later:
            thing.attempts = 0
            self._advance(later[0].owner)
        self._close(thing)

    def fell_due(self, thing: Thing) -> None:
        """The time of the next attempt has come, or of giving up."""
        parked, thing.errand = thing.errand is Errand.PARKED, Errand.NONE
        if parked:
            thing.sent = thing.in_state(ResourceState.RECLAIMING)
            self._finish(
                thing, Deed.GIVE_UP, f"nobody reclaims on {thing.key.host}; run `thunder reaper` there"
            )
        else:
            self._send(thing)

    def observed(self, event: ResourceObserved) -> None:
        thing = self._things.get(ThingKey(event.kind, event.ref, event.host))
        if thing is not None and thing.pin is None:
            thing.pin, thing.brought = event.pin, event.brought

    def retry(self, program_id: str | None = None) -> int:
        """Try what failed again, of one program or of all; how many things that are."""
        failed = [
            thing
            for thing in self._things.values()
            if thing.errand is Errand.NONE
            and any(
                program_id in (None, holding.owner.program_id)
                for holding in thing.in_state(ResourceState.FAILED)
            )
        ]
        for thing in failed:
            self._retry(thing, "tried again")
        return len(failed)

    def _retry(self, thing: Thing, reason: str) -> None:
        self._step(thing.in_state(ResourceState.FAILED), Deed.RETRY, reason)
        thing.attempts = 0
        assert thing.trigger is not None
        thing.trigger.pending[thing] = None
        self._advance(thing.trigger)

    # --- hosts

    def served(self, host: str | None) -> None:
        """Somebody reclaims on this host from now on: what waited for that goes."""
        if host in self.hosts:
            return
        self.hosts[host] = None
        for thing in [thing for thing in self._things.values() if thing.key.host == host]:
            if thing.errand is Errand.PARKED:
                thing.errand = Errand.NONE
                self._w.deadlines.clear((Due.RECLAIM, thing))
                assert thing.trigger is not None
                thing.trigger.pending[thing] = None
                self._advance(thing.trigger)
            elif thing.errand is Errand.NONE and thing.attempts == 0 and thing.in_state(ResourceState.FAILED):
                self._retry(thing, "somebody serves its host again")

    def unserved(self, host: str | None) -> None:
        """Nobody does any longer: what was under way there waits for somebody else."""
        if host not in self.hosts:
            return
        del self.hosts[host]
        for thing in [t for t in self._things.values() if t.key.host == host and t.errand is Errand.OUT]:
            thing.attempts -= 1
            self._send(thing)

    # --- to be read

    def __iter__(self) -> Iterator[Holding]:
        """Everything that anybody holds, or held and is still shown."""
        for owner in self._owners:
            yield from owner.holdings.values()

    def of(self, program: Program) -> list[Holding]:
        """What one program has declared, in that order."""
        owner = self._owner(program)
        return [] if owner is None else list(owner.holdings.values())

    def owners(self) -> Iterator[Owner]:
        """Everybody who holds something, or did and is still shown."""
        return iter(self._owners)

    def names_on(self, host: str | None) -> set[str]:
        """By what names and ids anybody knows a thing on this host; of full ids also their short form."""
        names: set[str] = set()
        for holding in self:
            key, pin = holding.thing.key, holding.thing.pin
            if key.host == host:
                names.update((key.ref, key.ref[:12] if len(key.ref) == 64 else key.ref, pin or key.ref))
        return names

    # --- words

    def _observe(self, thing: Thing, owner: Owner) -> None:
        key = thing.key
        if key.kind in DOCKER and thing.pin is None and key.host in self.hosts:
            self._w.out.append(
                Observe(
                    program_id=owner.program_id,
                    generation=owner.generation,
                    host=key.host,
                    kind=key.kind,
                    ref=key.ref,
                    claims=(owner.claim(self._w.now),),
                )
            )

    def _step(self, holdings: list[Holding], deed: Deed, reason: str) -> None:
        for holding in holdings:
            if holding.take(deed):
                self._tell(holding, reason)

    def _tell(self, holding: Holding, reason: str) -> None:
        holding.reason = reason
        holding.since = self._w.now
        key, owner = holding.thing.key, holding.owner
        self._w.out.append(
            ResourceChanged(
                program_id=owner.program_id,
                generation=owner.generation,
                kind=key.kind,
                ref=key.ref,
                host=key.host,
                keep=holding.keep,
                state=holding.state.value,
                reason=reason,
            )
        )
