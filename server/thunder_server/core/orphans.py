"""What carries a program's label and was never declared: its client died in between, or did not care to.

Soon after programs end, each host is asked for everything labelled; what names a program that is over here
goes on its account. Programs that are unknown here may be another server's: theirs goes only at the
operator's word (``OrphansGiven``).
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_server.core.decisions import Survey
from thunder_server.core.ledger import Ledger
from thunder_server.core.program import Program, State
from thunder_server.core.resource_events import Found, OrphansGiven, Surveyed
from thunder_server.core.resources import Owner
from thunder_server.core.world import Due, World

SOON_S = 1.0
"""After a program's end; several that end together are one survey."""
APART_S = 2.0
"""Between two surveys of a host; doubled for every one that finds nothing to do."""
FAR_APART_S = 64.0


@dataclass(slots=True)
class Rhythm:
    """How often a host is looked at."""

    apart_s: float = APART_S
    last_at: float | None = None
    out: bool = False
    again: bool = False  # somebody ended while it was being looked at


class Orphans:
    """Looks for them, and hands them to the ledger."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._w = world
        self._ledger = ledger
        self._rhythms: dict[str | None, Rhythm] = {}

    def ended(self, program: Program) -> None:
        """A program is over: have every host looked at, before long."""
        if not program.anonymous:
            for host in self._ledger.holdings.hosts:
                rhythm = self._rhythms.setdefault(host, Rhythm())
                if rhythm.out:
                    rhythm.again = True
                else:
                    self._plan(host, rhythm)

    def _plan(self, host: str | None, rhythm: Rhythm) -> None:
        due = self._w.now + SOON_S
        if rhythm.last_at is not None:
            due = max(due, rhythm.last_at + rhythm.apart_s)
        if self._w.deadlines.get((Due.SURVEY, host)) is None:
            self._w.deadlines.set((Due.SURVEY, host), due)

    def fell_due(self, host: str | None) -> None:
        """Look at the host now."""
        rhythm = self._rhythms[host]
        rhythm.out, rhythm.again, rhythm.last_at = True, False, self._w.now
        self._w.out.append(Survey(program_id="", generation=0, host=host))

    def unserved(self, host: str | None) -> None:
        """There is nobody to look at it any longer."""
        self._rhythms.pop(host, None)
        self._w.deadlines.clear((Due.SURVEY, host))

    def surveyed(self, event: Surveyed) -> None:
        """Take on what programs left behind that are over."""
        rhythm = self._rhythms.get(event.host)
        if rhythm is None:
            return
        rhythm.out = False
        taken = 0
        for found in self._ledger.holdings.unknown(event.host, event.objects or ()):
            owner = self._owner(found)
            if owner is not None:
                self._ledger.found(event.host, found, owner)
                taken += 1
        rhythm.apart_s = APART_S if taken else min(FAR_APART_S, 2 * rhythm.apart_s)
        if rhythm.again:
            self._plan(event.host, rhythm)

    def given(self, event: OrphansGiven) -> None:
        """Take on what the operator wants gone."""
        for found in event.objects:
            self._ledger.found(event.host, found, self._stranger(found.program_id, 0, self._w.now))

    def _owner(self, found: Found) -> Owner | None:
        """The program that is over whose object this is; ``None`` if that cannot be said."""
        program = self._w.programs.get(found.program_id)
        if program is None:
            return None
        if program.state is State.ENDED:
            return self._ledger.holdings.record(program)
        if found.created_at < program.began_at and program.generation > 1:
            return self._stranger(program.id, program.generation - 1, program.began_at)
        return None

    def _stranger(self, program_id: str, generation: int, at: float) -> Owner:
        """Somebody of whom only the label speaks: nothing without one was made within no time at all."""
        known = self._ledger.holdings.generation(program_id, generation)
        return known or Owner(
            program_id=program_id, generation=generation, opened_at=at, ended_at=at, shown=False
        )
