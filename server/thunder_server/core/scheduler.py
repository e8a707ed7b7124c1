"""The scheduler: events in, decisions out.

One event is worked off completely before the next: what was due before it, the event itself, then its
consequences until there are none left (phases, programs that leave or end, whoever finds room now). Parts:
``Lifecycle`` of programs, ``Calls``, ``Replicas``, and ``Placement``, which does what the policy wants; they
share the ``World``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from thunder_server.core.backend import Backend
from thunder_server.core.call import Call
from thunder_server.core.calls import Calls
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.counters import Counters
from thunder_server.core.decisions import Decision
from thunder_server.core.environments import Environments
from thunder_server.core.events import (
    BackendAdded,
    BackendDrained,
    BackendRemoved,
    BackendReported,
    CallArrived,
    CallConnectFailed,
    CallFinished,
    CallProgressed,
    CallTokenized,
    ClientEvent,
    Event,
    PrefixCleared,
    PrefixEvicted,
    PrefixStored,
    PrefixUnseen,
    ProgramClosed,
    ProgramOpened,
    Tick,
    WeightSyncBegan,
    WeightSyncEnded,
)
from thunder_server.core.invariants import check_invariants
from thunder_server.core.ledger import Ledger
from thunder_server.core.lifecycle import Lifecycle
from thunder_server.core.orphans import Orphans
from thunder_server.core.placement import Placement
from thunder_server.core.policies import Policy
from thunder_server.core.program import Program
from thunder_server.core.replicas import Replicas
from thunder_server.core.resource_events import (
    EnvironmentAwaited,
    EnvironmentEvent,
    FailedRetried,
    HostServed,
    HostUnserved,
    OrphansGiven,
    ProgramRecovered,
    ReclaimEnded,
    ResourceObserved,
    Surveyed,
)
from thunder_server.core.resources import Thing
from thunder_server.core.router import KvRouter
from thunder_server.core.views import Why, backend_view, program_view, why
from thunder_server.core.weight_sync import WeightSync
from thunder_server.core.world import Due, World


class Scheduler:
    """Decides which call goes where and when.

    Example:
        >>> from thunder_server.core.policies import make_policy
        >>> scheduler = Scheduler(policy=make_policy("passthrough"))
        >>> _ = scheduler.handle(BackendAdded(at=0.0, backend_id="gpu:8000"))
        >>> _ = scheduler.handle(BackendReported(at=0.0, backend_id="gpu:8000", healthy=True))
        >>> decisions = scheduler.handle(CallArrived(at=1.0, call_id="c1", program_id="p1"))
        >>> [type(decision).__name__ for decision in decisions]
        ['Opened', 'PhaseChanged', 'Dispatch']
    """

    def __init__(self, *, policy: Policy, config: SchedulerConfig | None = None) -> None:
        self._world = World(policy, config or SchedulerConfig())
        self.ledger: Final = Ledger(self._world)
        """Who holds what outside the GPU; to be read."""
        self._environments = Environments(self._world, self.ledger)
        self._orphans = Orphans(self._world, self.ledger)
        self._placement = Placement(self._world, self._environments)
        self._calls = Calls(self._world, self._placement)
        self._lifecycle = Lifecycle(
            self._world, self._placement, self._calls, self.ledger, self._environments, self._orphans
        )
        self._replicas = Replicas(self._world, self._placement)
        self._weight_sync = WeightSync(self._world, self._placement)

    # --- events in, decisions out

    def handle(self, event: Event) -> list[Decision]:
        """What is to be done now that this has happened. Time that goes back is taken to stand still."""
        w = self._world
        w.now = max(w.now, event.at)
        if w.unhealthy_since is None and not w.fleet.any_healthy():
            w.unhealthy_since = w.now
        self._work_off_due()
        self._happened(event)
        self._conclude()
        self._work_off_due()
        self._schedule_tick()
        decisions, w.out = w.out, []
        return decisions

    def next_deadline(self) -> float | None:
        """When to hand in a ``Tick`` if nothing else happens before; ``None``: no need."""
        return self._world.deadlines.next()

    def _happened(self, event: Event) -> None:
        match event:
            case CallArrived():
                self._calls.arrived(self._lifecycle.for_call(event), event)
            case CallProgressed():
                self._calls.progressed(event)
            case CallTokenized():
                self._calls.tokenized(event)
            case CallFinished():
                self._calls.finished(event)
            case CallConnectFailed():
                self._connect_failed(event)
            case ClientEvent() | ProgramOpened() | ProgramClosed() | ProgramRecovered():
                self._lifecycle.happened(event)
            case BackendAdded() | BackendReported() | BackendDrained() | BackendRemoved():
                self._replicas.happened(event)
            case PrefixStored() | PrefixEvicted() | PrefixCleared() | PrefixUnseen():
                self._replicas.told(event)
            case WeightSyncBegan():
                self._weight_sync.began(event)
            case WeightSyncEnded():
                self._weight_sync.ended()
            case Tick():
                pass
            case _:
                self._resource_happened(event)

    def _resource_happened(self, event: Event) -> None:
        match event:
            case ReclaimEnded():
                self.ledger.removal.ended(event)
            case ResourceObserved():
                self.ledger.removal.observed(event)
            case FailedRetried():
                self.ledger.removal.retry(event.program_id)
            case Surveyed():
                self._orphans.surveyed(event)
            case OrphansGiven():
                self._orphans.given(event)
            case EnvironmentAwaited():
                program = self._world.programs.get(event.program_id)
                if program is not None:
                    self._environments.awaited(program)
            case EnvironmentEvent():
                self._environments.happened(event)
            case HostServed():
                self.ledger.removal.served(event.host)
                self._environments.served(event.host)
            case HostUnserved():
                self.ledger.removal.unserved(event.host)
                self._environments.unserved(event.host)
                self._orphans.unserved(event.host)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of the scheduler")

    def _connect_failed(self, event: CallConnectFailed) -> None:
        """Better evidence than the last poll: the backend is down until it is heard of again."""
        if self._calls.is_running(event.call_id, event.backend_id):
            backend = self._world.fleet.get(event.backend_id)
            if backend is not None:
                self._replicas.down(backend, f"{backend.id} refused a connection")
            self._calls.connect_failed(event)

    def _fell_due(self, due: Due, what: object) -> None:
        match due, what:
            case Due.LEASE, Program():
                self._lifecycle.lease_expired(what)
            case Due.WAIT, Call():
                self._calls.waited_too_long(what)
            case Due.UNSERVED, str() | None:
                self._calls.unserved(what)
            case Due.FORGET, str():
                self._lifecycle.forgotten(what)
            case Due.GATHERED, None:
                self._world.freed = True
            case Due.RECLAIM, Thing():
                self.ledger.removal.fell_due(what)
            case Due.SURVEY, str() | None:
                self._orphans.fell_due(what)
            case Due.PREPARE, _:
                self._environments.look()
            case Due.HIBERNATE, Program():
                self._environments.paused_for_long(what)
            case Due.WATCHDOG, _:
                self._weight_sync.overdue()
            case _:
                self._placement.tick()

    def _work_off_due(self) -> None:
        while (due := self._world.deadlines.pop(self._world.now)) is not None:
            self._fell_due(*due)
            self._conclude()

    def _conclude(self) -> None:
        """Draw consequences until there are none: whoever may find room is looked at before anybody is
        refused or sent to the queue for want of it."""
        w = self._world
        while w.unsettled:
            if w.touched:
                self._lifecycle.settle()
            elif w.freed:
                w.freed = False
                self._placement.refill()
            elif w.impatient:
                self._calls.refuse_impatient()
            else:
                self._placement.park()

    def _schedule_tick(self) -> None:
        w = self._world
        interval = w.policy.interval_s
        if interval is None or w.deadlines.get((Due.TICK, None)) is not None:
            return
        if w.queue or any(backend.programs for backend in w.fleet.values()):
            w.deadlines.set((Due.TICK, None), w.now + interval)

    # --- to be read

    @property
    def programs(self) -> Mapping[str, Program]:
        """The latest generation of every id, those that ended in the last ten minutes included."""
        return MappingProxyType(self._world.programs)

    @property
    def backends(self) -> Mapping[str, Backend]:
        """All replicas by id."""
        return self._world.fleet

    @property
    def counters(self) -> Counters:
        """Totals since the start."""
        return self._world.counters

    @property
    def router(self) -> KvRouter:
        """What is taken to be cached where, and how that has turned out."""
        return self._world.router

    @property
    def queued_programs(self) -> int:
        """How many programs wait for a backend."""
        return len(self._world.queue)

    @property
    def held(self) -> bool:
        """Whether nothing is dispatched because the engines are getting new weights."""
        return self._world.held_since is not None

    @property
    def running_calls(self) -> int:
        """How many calls were sent to a backend and are not over."""
        return sum(backend.running for backend in self._world.fleet.values())

    @property
    def waiting_calls(self) -> int:
        """How many calls wait."""
        return sum(len(calls) for calls in self._world.waiting.values())

    def program(self, program_id: str) -> Program | None:
        """The latest generation of an id, as long as it is known."""
        return self._world.programs.get(program_id)

    def call(self, call_id: str) -> Call | None:
        """A live call."""
        found = self._world.calls.get(call_id)
        return found[1] if found else None

    def view(self, program: Program, at: float) -> dict[str, object]:
        """The program object of the control plane; see ``views.program_view``."""
        return program_view(self._world, self.ledger.holdings, program, at)

    def backend_view(self, backend: Backend) -> dict[str, object]:
        """The backend object of the control plane; see ``views.backend_view``."""
        return backend_view(backend)

    def why(self, program_id: str, at: float) -> Why | None:
        """Why a program is where it is; ``None`` for an unknown id."""
        program = self._world.programs.get(program_id)
        return why(self._world, program, at) if program else None

    def check_invariants(self) -> None:
        """Recompute everything from scratch and compare; for tests.

        Raises:
            AssertionError: something does not hold; the message says what.
        """
        check_invariants(self._world)
