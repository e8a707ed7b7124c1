"""What the parts of the scheduler share: all state, and the decisions made so far."""

from __future__ import annotations

from enum import Enum, auto

from thunder_server.core.call import Call
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.counters import Counters
from thunder_server.core.deadlines import Deadlines
from thunder_server.core.decisions import Decision
from thunder_server.core.durations import Durations, Kinds
from thunder_server.core.fleet import Fleet
from thunder_server.core.flow import Flow
from thunder_server.core.global_queue import GlobalQueue
from thunder_server.core.policies import Policy
from thunder_server.core.program import Chapter, Program
from thunder_server.core.router import KvRouter
from thunder_server.core.sizing import Sizer


class Due(Enum):
    """Kinds of deadlines; each with what it is about."""

    LEASE = auto()  # a program has been silent for too long
    WAIT = auto()  # a call has waited for too long
    UNSERVED = auto()  # no backend has served a model for too long
    FORGET = auto()  # a terminated program need not be shown any longer
    TICK = auto()  # the policy's Δt is over
    GATHERED = auto()  # whoever let another one go first need not wait any longer
    RECLAIM = auto()  # a thing is to be removed again, or given up
    SURVEY = auto()  # a host is to be looked at for what nobody declared
    PREPARE = auto()  # whose environments are to be prepared is to be looked at
    HIBERNATE = auto()  # a program has been paused for long
    WATCHDOG = auto()  # a weight sync has gone on for too long


class World:
    """The state. ``touched`` programs have consequences to be drawn (see ``Lifecycle.settle``); ``freed``
    says that a program that waits may find room now; ``homeless`` programs have calls
    waiting and no backend; ``impatient`` calls are served now or refused."""

    def __init__(self, policy: Policy, config: SchedulerConfig) -> None:
        self.policy = policy
        self.config = config
        self.now = 0.0
        self.router = KvRouter(config.router)
        self.fleet = Fleet(
            self.router, decay=policy.decay, watermark=policy.watermark, shares=policy.prefix_aware
        )
        self.queue = GlobalQueue()
        self.deadlines = Deadlines[tuple[Due, object]]()
        self.sizer = Sizer()
        self.tools = Kinds()
        self.gaps = Durations()
        self.counters = Counters()
        self.flow = Flow()
        self.programs: dict[str, Program] = {}  # the latest generation of each id
        self.live: dict[Program, None] = {}  # all that have not ended, closing older generations included
        self.calls: dict[str, tuple[Program, Call]] = {}  # live ones
        self.waiting: dict[str | None, dict[Call, None]] = {}  # waiting calls by model
        self.unhealthy_since: float | None = None  # since when no backend is healthy
        self.held_since: float | None = None  # since when nothing is dispatched (see ``weight_sync``)

        self.touched: dict[Program, None] = {}
        self.homeless: dict[Program, None] = {}
        self.impatient: list[Call] = []
        self.freed = False
        self.dispatched = 0
        self.out: list[Decision] = []

    @property
    def unsettled(self) -> bool:
        """Whether there are consequences to be drawn."""
        return bool(self.touched or self.freed or self.impatient or self.homeless)

    def touch(self, program: Program) -> None:
        self.touched[program] = None

    def tell(self, program: Program, decision: Decision, reason: str) -> None:
        """Decide, and enter it in the program's story."""
        self.out.append(decision)
        self.note(program, type(decision).__name__.lower(), reason)

    def note(self, program: Program, what: str, reason: str) -> None:
        """Enter something in the program's story that asks for nothing."""
        program.reason = reason
        program.story.append(Chapter(self.now, what, reason))

    def start_waiting(self, call: Call) -> None:
        """The call waits from now on: until its own deadline, and for a backend that could serve it."""
        model = call.request.model
        self.waiting.setdefault(model, {})[call] = None
        self.deadlines.set((Due.WAIT, call), call.deadline)
        self.watch(model)

    def stop_waiting(self, call: Call) -> None:
        """The call has been dispatched, or is over."""
        model = call.request.model
        calls = self.waiting.get(model, {})
        calls.pop(call, None)
        if not calls:
            self.waiting.pop(model, None)
            self.deadlines.clear((Due.UNSERVED, model))
        self.deadlines.clear((Due.WAIT, call))

    def watch(self, model: str | None) -> None:
        """Keep the deadline until which a backend has to serve the model that calls wait for."""
        key = (Due.UNSERVED, model)
        if self.fleet.serving(model):
            self.deadlines.clear(key)
        elif self.deadlines.get(key) is None:
            since = self.now if self.unhealthy_since is None else self.unhealthy_since
            self.deadlines.set(key, since + self.config.no_backend_after_s)
