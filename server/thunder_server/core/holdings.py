"""The book of the ledger: everybody who holds something, everything that is held, and every change told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from thunder_server.core.decisions import ResourceChanged
from thunder_server.core.program import Program
from thunder_server.core.resource_events import Found
from thunder_server.core.resources import (
    OPEN,
    REMEMBERED,
    Deed,
    Holding,
    Owner,
    ResourceState,
    Thing,
    ThingKey,
)
from thunder_server.core.world import World

SHORT_ID = 12
HEX = frozenset("0123456789abcdef")


class Holdings:
    """Iterating gives everything that anybody holds, or held and is still shown.

    ``things`` are those about which something is, or will be, to be done; ``hosts`` those that somebody
    serves.
    """

    def __init__(self, world: World) -> None:
        self._w = world
        self.things: dict[ThingKey, Thing] = {}
        self.hosts: dict[str | None, None] = {}
        self._owners: dict[str, dict[int, Owner]] = {}  # by id and generation

    def __iter__(self) -> Iterator[Holding]:
        for generations in self._owners.values():
            for owner in generations.values():
                yield from owner.holdings.values()

    def of(self, program: Program) -> list[Holding]:
        """What one program has declared, in that order."""
        owner = self.owner(program)
        return [] if owner is None else list(owner.holdings.values())

    def owner(self, program: Program) -> Owner | None:
        return self.generation(program.id, program.generation)

    def generation(self, program_id: str, generation: int) -> Owner | None:
        return self._owners.get(program_id, {}).get(generation)

    def last_generation(self, program_id: str) -> int:
        """The latest generation of an id that holds something still, though it may be long forgotten."""
        return max(self._owners.get(program_id, ()), default=0)

    def unknown(self, host: str | None, objects: Iterable[Found]) -> list[Found]:
        """Those of ``objects`` on this host that nobody answers for.

        For what was spared only the program itself answers that declared it: it may be another's, whose label
        it carries.
        """
        anybody: set[str] = set()
        spared: dict[str, set[str]] = {}
        for holding in self:
            if holding.thing.key.host == host:
                alone = holding.state is ResourceState.SPARED
                names = spared.setdefault(holding.owner.program_id, set()) if alone else anybody
                names.update(_names(holding.thing))
        return [
            one
            for one in objects
            for names in ({one.ref, one.name, one.ref[:SHORT_ID]},)
            if names.isdisjoint(anybody) and names.isdisjoint(spared.get(one.program_id, ()))
        ]

    # --- entries

    def record(self, program: Program) -> Owner:
        """The owner that this generation is, entered if need be."""
        owner = self.owner(program)
        if owner is None:
            owner = Owner(
                program_id=program.id,
                generation=program.generation,
                opened_at=program.began_at,
                ended_at=program.ended_at,
            )
            self._enter(owner)
        elif owner.ended_at is None:
            owner.opened_at = min(owner.opened_at, program.began_at)
        return owner

    def hold(self, owner: Owner, thing: Thing, reason: str, *, keep: bool = False) -> Holding:
        """Enter that somebody holds a thing."""
        self._enter(owner)
        self.things[thing.key] = thing
        holding = Holding(owner=owner, thing=thing, keep=keep, since=self._w.now)
        owner.holdings[thing.key] = thing.holdings[owner] = holding
        self._tell(holding, reason)
        return holding

    def step(self, holdings: Iterable[Holding], deed: Deed, reason: str) -> None:
        """Take each of them one step of the table, those that have it."""
        for holding in holdings:
            if holding.take(deed):
                self._tell(holding, reason)

    def close(self, thing: Thing) -> None:
        """If nothing is to be done about it any more, whoever declares it again speaks of another one."""
        if not thing.in_state(*OPEN) and self.things.get(thing.key) is thing:
            del self.things[thing.key]
        for holding in list(thing.holdings.values()):
            if not holding.owner.shown:
                self._drop(holding)

    def forget(self, program_id: str, generation: int) -> None:
        """A program is not shown any longer; what is still to be done about its things remains."""
        owner = self.generation(program_id, generation)
        if owner is not None:
            owner.shown = False
            for holding in list(owner.holdings.values()):
                self._drop(holding)
            self._leave(owner)

    def _drop(self, holding: Holding) -> None:
        """Forget it, unless something is still to be done about it."""
        if holding.state not in REMEMBERED:
            holding.thing.holdings.pop(holding.owner, None)
            holding.owner.holdings.pop(holding.thing.key, None)
            self._leave(holding.owner)

    def _enter(self, owner: Owner) -> None:
        self._owners.setdefault(owner.program_id, {})[owner.generation] = owner

    def _leave(self, owner: Owner) -> None:
        """Who holds nothing, and is not shown, is none."""
        generations = self._owners.get(owner.program_id, {})
        if not owner.holdings and not owner.shown and owner.generation in generations:
            del generations[owner.generation]
            if not generations:
                del self._owners[owner.program_id]

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


def _names(thing: Thing) -> Iterator[str]:
    """By what names and ids the thing may be known; ids also by how they begin."""
    ref = thing.key.ref
    yield ref
    if len(ref) > SHORT_ID and set(ref) <= HEX:
        yield ref[:SHORT_ID]
    if thing.pin is not None:
        yield thing.pin
