"""The book of the ledger: everybody who holds something, everything that is held, and every change told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from thunder_server.core.decisions import ResourceChanged
from thunder_server.core.program import Program
from thunder_server.core.resources import OPEN, REMEMBERED, Deed, Holding, Owner, Thing, ThingKey
from thunder_server.core.world import World


class Holdings:
    """Iterating gives everything that anybody holds, or held and is still shown.

    ``things`` are those about which something is, or will be, to be done; ``hosts`` those that somebody
    serves.
    """

    def __init__(self, world: World) -> None:
        self._w = world
        self.things: dict[ThingKey, Thing] = {}
        self.hosts: dict[str | None, None] = {}
        self._owners: dict[Owner, None] = {}
        self._latest: dict[tuple[str, int], Owner] = {}  # an id that was forgotten begins at 1 again

    def __iter__(self) -> Iterator[Holding]:
        for owner in self._owners:
            yield from owner.holdings.values()

    def of(self, program: Program) -> list[Holding]:
        """What one program has declared, in that order."""
        owner = self.owner(program)
        return [] if owner is None else list(owner.holdings.values())

    def owner(self, program: Program) -> Owner | None:
        return self.generation(program.id, program.generation)

    def generation(self, program_id: str, generation: int) -> Owner | None:
        return self._latest.get((program_id, generation))

    def names_on(self, host: str | None) -> set[str]:
        """By what names and ids anybody knows a thing on this host; of full ids also their short form."""
        names: set[str] = set()
        for holding in self:
            key, pin = holding.thing.key, holding.thing.pin
            if key.host == host:
                names.update((key.ref, key.ref[:12] if len(key.ref) == 64 else key.ref, pin or key.ref))
        return names

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
            self._owners[owner] = None
            self._latest[program.id, program.generation] = owner
        elif owner.ended_at is None:
            owner.opened_at = min(owner.opened_at, program.began_at)
        return owner

    def hold(self, owner: Owner, thing: Thing, reason: str, *, keep: bool = False) -> Holding:
        """Enter that somebody holds a thing."""
        self._owners[owner] = None
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

    def forget(self, program: Program) -> None:
        """The program is not shown any longer; what is still to be done about its things remains."""
        owner = self._latest.pop((program.id, program.generation), None)
        if owner is not None:
            for holding in [h for h in owner.holdings.values() if h.state not in REMEMBERED]:
                del owner.holdings[holding.thing.key]
                holding.thing.holdings.pop(owner, None)
            if not owner.holdings:
                del self._owners[owner]

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
