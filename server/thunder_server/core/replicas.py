"""The life of backends: added, reported on, draining, down, removed."""

from __future__ import annotations

from typing import assert_never

from thunder_server.core.backend import Backend, Report
from thunder_server.core.events import (
    BackendAdded,
    BackendDrained,
    BackendRemoved,
    BackendReported,
    PrefixCleared,
    PrefixEvicted,
    PrefixStored,
    PrefixUnseen,
)
from thunder_server.core.placement import Placement
from thunder_server.core.world import World

BackendEvent = BackendAdded | BackendReported | BackendDrained | BackendRemoved
PrefixEvent = PrefixStored | PrefixEvicted | PrefixCleared | PrefixUnseen


class Replicas:
    """Keeps what is known of each backend, and takes programs off those that cannot serve them."""

    def __init__(self, world: World, placement: Placement) -> None:
        self._w = world
        self._placement = placement

    def happened(self, event: BackendEvent) -> None:
        """Take in what happened to a backend; for one that is not known (any longer), nothing did."""
        match event:
            case BackendAdded():
                self.added(event)
            case BackendReported():
                self.reported(event)
            case BackendDrained():
                self.drained(event)
            case BackendRemoved():
                self.removed(event)
            case _:
                assert_never(event)

    def added(self, event: BackendAdded) -> None:
        """A new one; a known one takes the new figures, and no longer drains."""
        w = self._w
        backend = w.fleet.get(event.backend_id) or w.fleet.add(event.backend_id, w.now)
        backend.weight = event.weight
        backend.draining = False
        backend.resize(event.capacity_tokens, backend.engine_capacity, w.now)
        self._changed()

    def reported(self, event: BackendReported) -> None:
        """One poll. A capacity that the engine no longer tells is unknown; pollers forgive a missed look."""
        w = self._w
        backend = w.fleet.get(event.backend_id)
        if backend is None:
            return
        if not event.healthy:
            self.down(backend, f"{backend.id} is down")
            return
        known = (backend.healthy, backend.models)
        if not backend.healthy:
            backend.cold_since = w.now
        backend.healthy = True
        backend.models = event.models
        backend.report = Report(
            used_tokens=event.used_tokens,
            running=event.running,
            waiting=event.waiting,
            hit_rate=event.hit_rate,
        )
        engine = event.capacity_tokens
        limit = backend.limit
        if engine != backend.engine_capacity:
            backend.resize(backend.operator_capacity, engine, w.now)
        if backend.limit != limit:
            self._placement.tick()
        if known != (True, event.models) or backend.limit != limit:
            self._changed()

    def down(self, backend: Backend, reason: str) -> None:
        """Its KV is gone, and with it every program's place there. Its running calls are left for the
        runtime to report."""
        backend.report = Report()
        if not backend.healthy:
            return
        backend.healthy = False
        backend.emptied(exact=False, at=self._w.now)
        backend.resize(backend.operator_capacity, None, self._w.now)
        self._clear(backend, reason)

    def drained(self, event: BackendDrained) -> None:
        """No program is placed there any longer; those that are move at their next call."""
        backend = self._w.fleet.get(event.backend_id)
        if backend is not None:
            backend.draining = True
            self._changed()

    def removed(self, event: BackendRemoved) -> None:
        backend = self._w.fleet.get(event.backend_id)
        if backend is not None:
            backend.healthy = False
            self._clear(backend, f"{backend.id} was removed")
            self._w.fleet.remove(backend.id)
            self._changed()

    def told(self, event: PrefixEvent) -> None:
        """An engine tells what its cache does."""
        backend = self._w.fleet.get(event.backend_id)
        if backend is None:
            return
        cache = backend.cache
        match event:
            case PrefixStored(keys=keys):
                cache.stored(keys)
            case PrefixEvicted(keys=keys):
                cache.evicted(keys)
            case PrefixCleared(exact=exact):
                backend.emptied(exact=exact, at=self._w.now)
            case PrefixUnseen():
                cache.lost_sight()
            case _:
                assert_never(event)

    def _clear(self, backend: Backend, reason: str) -> None:
        for program in list(backend.programs):
            self._placement.unplace(program, reason)
            self._w.touch(program)
        self._changed()

    def _changed(self) -> None:
        """What could be served, and by whom, has changed: rare, so everybody who waits is looked at."""
        w = self._w
        if w.fleet.any_healthy():
            w.unhealthy_since = None
        elif w.unhealthy_since is None:
            w.unhealthy_since = w.now
        for model, calls in w.waiting.items():
            w.watch(model)
            for call in calls:
                # Refused everywhere that is left: what has come back since may be asked again.
                if call.tried and not w.fleet.serving(model, call.tried):
                    call.tried.clear()
        self._placement.look_again()
