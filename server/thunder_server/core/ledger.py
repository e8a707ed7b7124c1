"""The ledger of resources: who holds what, and whose end condemns it.

A thing is reclaimed when the last program that held it is over; if any of them wanted it kept, it stays.
What is declared only after its program's end is that program's still, and goes at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder_server.core.holdings import Holdings
from thunder_server.core.program import Program
from thunder_server.core.removal import Removal
from thunder_server.core.resource_events import Found, RecoveredResource
from thunder_server.core.resources import Deed, Errand, Holding, Owner, ResourceState, Thing, ThingKey
from thunder_server.core.world import World


class Ledger:
    """What programs say about resources, and what their ends mean for them."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.holdings = Holdings(world)
        self.removal = Removal(world, self.holdings)

    # --- what programs say

    def declare(self, program: Program, key: ThingKey, *, keep: bool) -> None:
        """The program holds it from now on; the latest word on ``keep`` counts."""
        owner = self.holdings.record(program)
        thing = self.holdings.things.get(key) or Thing(key=key)
        holding = owner.holdings.get(key)
        if holding is None or holding.thing is not thing:
            holding = self.holdings.hold(owner, thing, "declared", keep=keep)
        else:
            news = holding.keep != keep or holding.state is not ResourceState.DECLARED
            holding.keep = keep
            if news:
                self.holdings.step([holding], Deed.DECLARE, "declared again")
        if owner.ended_at is None:
            self._adopt(thing, owner)
            self.removal.observe(thing, owner)
        else:
            self._leave(owner, [holding])

    def release(self, program: Program, key: ThingKey) -> None:
        """The program gave it back; what it never declared is none of ours."""
        owner = self.holdings.owner(program)
        holding = None if owner is None else owner.holdings.get(key)
        if holding is None:
            return
        thing = holding.thing
        if holding.state is ResourceState.RECLAIMING and thing.errand is Errand.OUT:
            return  # somebody is at it
        self.holdings.step([holding], Deed.RELEASE, "the program gave it back")
        if thing.errand is not Errand.OUT and not thing.in_state(ResourceState.RECLAIMING):
            self.removal.unplan(thing)
        self.removal.settled(thing)
        shared = thing.in_state(ResourceState.SHARED)
        if shared and not thing.in_state(ResourceState.DECLARED):
            self._fate(thing, shared, shared[-1].owner)
            self.removal.advance(shared[-1].owner)
        self.holdings.close(thing)

    def _adopt(self, thing: Thing, owner: Owner) -> None:
        """Somebody holds a thing that was to be removed: if nobody is at it, it stays."""
        condemned = thing.in_state(ResourceState.RECLAIMING, ResourceState.FAILED)
        if condemned and thing.errand is not Errand.OUT:
            self.removal.unplan(thing)
            self.holdings.step(condemned, Deed.LEAVE, f"{owner.program_id} holds it now")
            self.removal.settled(thing)

    # --- whose end condemns what

    def opened(self, program: Program) -> None:
        """A generation begins: what is younger than it is not its predecessor's, which is shown no longer."""
        before = self.holdings.generation(program.id, program.generation - 1)
        if before is not None:
            before.next_opened_at = program.began_at
            if before.ended_at is not None:
                self.holdings.forget(program.id, program.generation - 1)

    def ended(self, program: Program) -> None:
        """Reclaim what only this program held."""
        owner = self.holdings.owner(program)
        if owner is not None:
            owner.ended_at = program.ended_at
            self._leave(owner, list(owner.holdings.values()))

    def found(self, host: str | None, found: Found, owner: Owner) -> None:
        """A labelled object that nobody declared, of a program that is over: reclaim it."""
        key = ThingKey(found.kind, found.ref, host)
        if key not in self.holdings.things:
            holding = self.holdings.hold(owner, Thing(key=key, pin=found.ref), "found by its label")
            self._leave(owner, [holding])

    def recover(self, owner: Owner, resources: Iterable[RecoveredResource]) -> None:
        """What an earlier run of the server knew that somebody holds."""
        for known in resources:
            key = ThingKey(known.kind, known.ref, known.host)
            thing = self.holdings.things.get(key)
            if thing is None:
                thing = Thing(key=key, pin=known.pin, brought=known.brought)
            self.holdings.hold(owner, thing, "known from before the server's start", keep=known.keep)
        if owner.ended_at is not None:
            self._leave(owner, list(owner.holdings.values()))

    def _leave(self, owner: Owner, holdings: list[Holding]) -> None:
        """The owner is over: for each thing, others hold it still, somebody wants it kept, or it goes."""
        for holding in holdings:
            if holding.state is ResourceState.DECLARED:
                thing = holding.thing
                left = thing.in_state(ResourceState.DECLARED, ResourceState.SHARED)
                if any(other.owner.ended_at is None for other in left):
                    self.holdings.step([holding], Deed.LEAVE, "another program holds it still")
                else:
                    self._fate(thing, left, owner)
        self.removal.advance(owner)

    def _fate(self, thing: Thing, left: list[Holding], owner: Owner) -> None:
        """Nobody holds it any longer."""
        if any(holding.keep for holding in left):
            self.holdings.step(left, Deed.KEEP, "it was declared to be kept")
            self.holdings.close(thing)
        else:
            self.holdings.step(left, Deed.CONDEMN, "its program is over")
            self.removal.plan(thing, owner)
