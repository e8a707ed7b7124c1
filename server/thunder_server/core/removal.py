"""How condemned things go: in order, with retries, and given up in the end.

An owner's things go one rank of ``TEARDOWN`` after the other; within a rank side by side. A removal that
fails is tried again with back-off and given up after ``ATTEMPTS``; then, and where nobody serves a host, the
next rank does not wait any longer. Nothing is tried twice at a time, and nothing again once it is gone.
"""

from __future__ import annotations

from thunder_server.core.decisions import Observe, Reclaim
from thunder_server.core.holdings import Holdings
from thunder_server.core.resource_events import ReclaimEnd, ReclaimEnded, ResourceObserved
from thunder_server.core.resources import (
    DOCKER,
    TRANSITIONS,
    Deed,
    Errand,
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


class Removal:
    """Sees to it that what is condemned goes."""

    def __init__(self, world: World, holdings: Holdings) -> None:
        self._w = world
        self._holdings = holdings

    # --- in which order

    def plan(self, thing: Thing, owner: Owner) -> None:
        """It is to go on this owner's account, once `advance` says so."""
        thing.trigger = owner
        thing.attempts = 0
        if thing.errand is not Errand.PARKED:
            owner.pending[thing] = None

    def unplan(self, thing: Thing) -> None:
        """It is not to go after all; nobody has been told to."""
        thing.errand = Errand.NONE
        self._w.deadlines.clear((Due.RECLAIM, thing))

    def advance(self, owner: Owner) -> None:
        """Begin with whatever of the lowest rank has not begun."""
        if owner.pending:
            rank = min(thing.rank for thing in owner.pending)
            for thing in [thing for thing in owner.pending if thing.rank == rank]:
                if thing.errand is Errand.NONE and not thing.busy:
                    self._send(thing)

    def settled(self, thing: Thing) -> None:
        """Those on whose account it does not go (any more), or not for now, need not wait for it."""
        for owner, holding in list(thing.holdings.items()):
            waits = holding.state is ResourceState.RECLAIMING and thing.errand is not Errand.PARKED
            if thing in owner.pending and not waits:
                del owner.pending[thing]
                self.advance(owner)

    def made(self, key: ThingKey, *, busy: bool) -> None:
        """It is being made, and cannot be removed meanwhile; or no longer so."""
        thing = self._holdings.things.get(key)
        if thing is not None:
            thing.busy = busy
            if not busy and thing.trigger is not None:
                self.advance(thing.trigger)

    def _send(self, thing: Thing) -> None:
        w, key = self._w, thing.key
        thing.sent = thing.in_state(ResourceState.RECLAIMING)
        if key.kind == "port":
            self._finish(thing, Deed.SUCCEED, "free again: its lock ends with whoever holds it")
            return
        if key.host not in self._holdings.hosts:
            thing.errand = Errand.PARKED
            w.deadlines.set((Due.RECLAIM, thing), w.now + UNSERVED_S)
            self.settled(thing)
            return
        assert thing.trigger is not None
        thing.errand = Errand.OUT
        thing.attempts += 1
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

    # --- what became of it

    def ended(self, event: ReclaimEnded) -> None:
        """An attempt is over. One that nobody asked for is ignored."""
        thing = self._holdings.things.get(ThingKey(event.kind, event.ref, event.host))
        if thing is None or thing.errand is not Errand.OUT:
            return
        thing.errand = Errand.NONE
        match event.end:
            case ReclaimEnd.GONE:
                thing.pin = thing.brought = None  # whatever goes by its name from now on is another one
                self._finish(thing, Deed.SUCCEED, event.reason or "removed")
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

    def fell_due(self, thing: Thing) -> None:
        """The time of the next attempt has come, or of giving up."""
        parked, thing.errand = thing.errand is Errand.PARKED, Errand.NONE
        if parked:
            thing.sent = thing.in_state(ResourceState.RECLAIMING)
            reason = f"nobody reclaims on {thing.key.host}; run `thunder reaper` there"
            self._finish(thing, Deed.GIVE_UP, reason)
        else:
            self._send(thing)

    def _finish(self, thing: Thing, deed: Deed, reason: str) -> None:
        """The removal is over. Who let go of the thing meanwhile has it tried anew."""
        self._holdings.step(thing.sent, deed, reason)
        self._w.counters.resources_ended[TRANSITIONS[ResourceState.RECLAIMING, deed]] += 1
        self.settled(thing)
        for holding in thing.in_state(ResourceState.RECLAIMING):
            self.advance(holding.owner)
        self._holdings.close(thing)

    def retry(self, program_id: str | None = None) -> None:
        """Try what failed again, of one program or of all."""
        for thing in list(self._holdings.things.values()):
            failed = thing.in_state(ResourceState.FAILED)
            if any(program_id in (None, holding.owner.program_id) for holding in failed):
                self._retry(thing, "tried again")

    def _retry(self, thing: Thing, reason: str) -> None:
        assert thing.trigger is not None
        self._holdings.step(thing.in_state(ResourceState.FAILED), Deed.RETRY, reason)
        self.plan(thing, thing.trigger)
        self.advance(thing.trigger)

    # --- hosts

    def served(self, host: str | None) -> None:
        """Somebody reclaims on this host from now on: what waited for that goes."""
        if host in self._holdings.hosts:
            return
        self._holdings.hosts[host] = None
        for thing in [thing for thing in self._holdings.things.values() if thing.key.host == host]:
            if thing.errand is Errand.PARKED:
                assert thing.trigger is not None
                self.unplan(thing)
                self.plan(thing, thing.trigger)
                self.advance(thing.trigger)
            elif thing.attempts == 0 and thing.in_state(ResourceState.FAILED):
                self._retry(thing, "somebody serves its host again")

    def unserved(self, host: str | None) -> None:
        """Nobody does any longer: what was under way there waits for somebody else."""
        if host not in self._holdings.hosts:
            return
        del self._holdings.hosts[host]
        for thing in [thing for thing in self._holdings.things.values() if thing.key.host == host]:
            if thing.errand is Errand.OUT:
                thing.attempts -= 1
                self._send(thing)

    # --- what was declared

    def observe(self, thing: Thing, owner: Owner) -> None:
        """Have somebody look at what a declared name stands for."""
        key = thing.key
        if key.kind in DOCKER and thing.pin is None and key.host in self._holdings.hosts:
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

    def observed(self, event: ResourceObserved) -> None:
        thing = self._holdings.things.get(ThingKey(event.kind, event.ref, event.host))
        if thing is not None and thing.pin is None:
            thing.pin, thing.brought = event.pin, event.brought
