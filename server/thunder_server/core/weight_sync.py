"""New weights for the engines: nothing is dispatched meanwhile, and no KV outlives it.

Programs leave their backends as it begins, since what is cached of them there is about to be worthless; their
running calls finish. So afterwards each may go wherever there is room.
"""

from __future__ import annotations

from thunder_server.core.decisions import Held, Resumed
from thunder_server.core.events import WeightSyncBegan
from thunder_server.core.placement import Placement
from thunder_server.core.world import Due, World

_WATCHDOG = (Due.WATCHDOG, None)


class WeightSync:
    """Holds dispatch, and lets go of it."""

    def __init__(self, world: World, placement: Placement) -> None:
        self._w = world
        self._placement = placement

    def began(self, event: WeightSyncBegan) -> None:
        """Hold dispatch; if it is held already, the watchdog starts anew."""
        w = self._w
        w.deadlines.set(_WATCHDOG, w.now + event.watchdog_s)
        if w.held_since is not None:
            return
        w.held_since = w.now
        running = sum(backend.running for backend in w.fleet.values())
        w.out.append(Held(running=running, reason="the engines are to get new weights"))
        for backend in w.fleet.values():
            for program in list(backend.programs):
                self._placement.unplace(program, "the engines are to get new weights")
                w.touch(program)

    def ended(self) -> None:
        """Dispatch again, if it is held."""
        self._end("the engines have their new weights")

    def overdue(self) -> None:
        """Nobody said that it is over: a trainer that died must not stop everybody for good."""
        self._end("the weight sync went on for too long: its watchdog has ended it")

    def _end(self, reason: str) -> None:
        w = self._w
        if w.held_since is None:
            return
        w.deadlines.clear(_WATCHDOG)
        w.out.append(Resumed(held_s=w.now - w.held_since, reason=reason))
        w.held_since = None
        for backend in w.fleet.values():
            backend.emptied(exact=backend.cache.exact, at=w.now)
        self._placement.look_again()
