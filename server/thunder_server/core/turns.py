"""Whose turn is near: for whom environments are worth preparing now.

For a program in the global queue, the room it waits for is expected to be free after the tokens wanted by it
and by those before it, less those free now, over the rate at which tokens have come free lately. (Where
policies count programs, not tokens, these do the same.) Its turn is near when that is not much longer than
preparing its environment takes, and for the first in the queue always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from thunder_server.core.environment import EnvironmentState
from thunder_server.core.flow import PrepareTimes
from thunder_server.core.program import Program
from thunder_server.core.world import World

LEAD = 1.5
LEAD_S = 1.0
"""Preparing begins LEAD times its learned time, and LEAD_S, before it is expected to be needed."""
WAKE_S = 1.0
"""How long it takes to wake a hibernated environment."""
PATIENCE_S = 30.0
"""A client that waits for an environment gets it after this time, if none was begun meanwhile."""


class Turns:
    """Looks at the queue and at newcomers. ``times`` are learned as environments are prepared."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.times = PrepareTimes()

    def near(self, unready: Collection[Program], promised: int, begun_at: float) -> Iterator[Program]:
        """Those of the ``unready`` whose turn is near.

        ``promised`` environments were prepared for programs that have no place yet, the latest of all was
        begun at ``begun_at``.
        """
        yield from self._placed(unready)
        yield from self._queued(unready)
        yield from self._newcomers(unready, promised, begun_at)

    def _placed(self, unready: Collection[Program]) -> list[Program]:
        """Those for whom it is high time."""
        return [program for program in unready if program.backend_id is not None or program.held]

    def _queued(self, unready: Collection[Program]) -> list[Program]:
        w = self._w
        near: list[Program] = []
        longest = max(map(self._lead, unready), default=0.0)
        rate, free, tokens = w.flow.per_second(w.now), self._free(), 0
        line = (program for group in w.queue.groups() for program in w.queue.walk(group))
        for place, program in enumerate(line):
            tokens += max(1, program.need)
            by_tokens = w.policy.room(w.fleet, program, w.now) is not None
            due_s = (
                self._due_s(tokens - free, rate.tokens) if by_tokens else self._due_s(place, rate.programs)
            )
            if place > 0 and due_s > longest:
                break
            if program in unready and (place == 0 or due_s <= self._lead(program)):
                near.append(program)
        return near

    def _due_s(self, lacking: float, per_second: float) -> float:
        if lacking <= 0:
            return 0.0
        return lacking / per_second if per_second > 0 else inf

    def _free(self) -> float:
        """Tokens free on all backends together."""
        w = self._w
        rooms = (b.limit - b.used(w.now) for b in w.fleet.values() if b.healthy and not b.draining)
        return sum(max(0.0, room) for room in rooms)

    def _lead(self, program: Program) -> float:
        environment = program.environment
        assert environment is not None
        if environment.state is EnvironmentState.WAITING:
            return LEAD * self.times.expected(environment.image) + LEAD_S
        return WAKE_S + LEAD_S

    def _newcomers(self, unready: Collection[Program], promised: int, begun_at: float) -> Iterator[Program]:
        """Those that have not called yet: as many as there would be room for, who is waited for first."""
        w = self._w
        vacancies = w.policy.vacancies(w.fleet, w.now) - promised - len(w.queue)
        newcomers = [
            (program, program.environment)
            for program in unready
            if program.backend_id is None and program not in w.queue and program.environment is not None
        ]
        for program, environment in sorted(newcomers, key=lambda entry: entry[1].awaited_since or inf):
            awaited = environment.awaited_since
            patient = w.fleet.any_healthy()  # else there is nothing to judge by
            overdue = awaited is not None and not (patient and w.now - max(awaited, begun_at) <= PATIENCE_S)
            if environment.state is EnvironmentState.WAITING and (vacancies >= 1 or overdue):
                vacancies -= 1
                begun_at = w.now
                yield program
