"""The scheduler under virtual time: agents that replay sessions, on simulated engines.

The simulator is a runtime as the server's is: it hands the core what happens and performs what the core
decides. Time jumps from one thing that happens to the next, so that hours take seconds, and equal inputs give
equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from thunder_server.core import Policy, Scheduler, SchedulerConfig
from thunder_server.core.decisions import Cancel, Decision, Dispatch, Pause, Refuse, Touch
from thunder_server.core.events import (
    BackendAdded,
    BackendReported,
    CallArrived,
    CallEnd,
    CallFinished,
    Event,
    PrefixCleared,
    PrefixEvicted,
    PrefixStored,
    Tick,
)
from thunder_server.core.prefix import Chain
from thunder_server.simulation.engine import Request
from thunder_server.simulation.oracle import Oracle
from thunder_server.simulation.prompts import Prompt, Prompts
from thunder_server.simulation.replay import Agent, Signals
from thunder_server.simulation.replica import Job, Replica
from thunder_server.simulation.results import Outcome, ProgramRun, Served
from thunder_server.simulation.time_model import EnginePreset
from thunder_server.simulation.timeline import Timeline
from thunder_server.simulation.workload import Session, Turn

CHARS_PER_TOKEN = 4
PATIENCE_S = 1e9
"""Nobody gives up waiting: it is fixed work, and how long calls wait is among what is measured."""
STILL_S = 20_000.0
"""When the scheduler has had nothing but the time to go by for this long, nothing will ever happen."""


class Standstill(RuntimeError):
    """A policy waits for programs that wait for it; says since when, and for how many calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A session that begins at ``at`` seconds, as a program of ``group``."""

    session: Session
    at: float = 0.0
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The engines: ``replicas`` of them with ``kv_tokens`` each."""

    preset: EnginePreset
    replicas: int
    kv_tokens: int
    block_size: int = 16

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that they take."""
        return min(self.preset.max_model_len, self.kv_tokens // self.block_size * self.block_size)


class Simulator:
    """One run: programs under a policy on engines. Equal arguments give equal results.

    With ``at_a_time``, only so many of ``starts`` begin at their time; each of the others follows one that
    has ended, so that the load stays what it is until the work runs out.

    >>> from thunder_server.core import make_policy
    >>> from thunder_server.simulation.time_model import PRESETS
    >>> from thunder_server.simulation.workload import recorded
    >>> sessions = [session.window(0, 3) for session in recorded().sessions[:4]]
    >>> machines = Machines(preset=PRESETS["h100-qwen30b"], replicas=1, kv_tokens=400_000)
    >>> simulator = Simulator(
    ...     [Start(session=session) for session in sessions], machines, policy=make_policy("paper")
    ... )
    >>> outcome = simulator.run()
    >>> len(outcome.programs), len(outcome.served), outcome.failed_calls
    (4, 12, 0)
    """

    def __init__(
        self,
        starts: Sequence[Start],
        machines: Machines,
        *,
        policy: Policy,
        signals: Signals = Signals.EXPLICIT,
        at_a_time: int | None = None,
        config: SchedulerConfig | None = None,
        kv_events: bool = False,
        check: bool = False,
    ) -> None:
        """``kv_events``: engines publish what they cache, and the tokens of all prompts are known."""
        self.timeline = Timeline()
        self.signals = signals
        self.machines = machines
        self._kv_events = kv_events
        self._policy = policy
        self.outcome = Outcome(kv_tokens=machines.kv_tokens * machines.replicas)
        self._scheduler = Scheduler(
            policy=policy, config=replace(config or SchedulerConfig(), max_wait_s=PATIENCE_S)
        )
        self._check = check
        self._systems: dict[str, int] = {}
        self._versions = count(1)
        self._call_ids = count(1)
        self._calls: dict[str, _Call] = {}
        self._latest: dict[str, Request] = {}  # by program
        self._idle: dict[str, tuple[Replica, int]] = {}  # where acting programs' contexts are
        self._held_back = False  # a call waits in the scheduler
        self._queueing: set[str] = set()  # engines in which requests wait
        self._wake: float | None = None
        self._wakes = 0  # entries of the timeline that only wake the scheduler
        self._moved = 0.0  # when something happened for the last time, other than that time went by
        self._left = len(starts)
        self._replicas: dict[str, Replica] = {}
        for number in range(machines.replicas):
            self._add_replica(f"replica-{number}")
        self._to_come = iter(starts)
        for start in islice(self._to_come, at_a_time):
            self._enter(start)

    def run(self) -> Outcome:
        """Until the last program has ended. Raises `Standstill` where that would be never."""
        self.timeline.run(lambda: not self._left)
        outcome, counters = self.outcome, self._scheduler.counters
        outcome.makespan_s = self.timeline.now
        outcome.restores, outcome.moves = counters.restores, counters.moves
        outcome.contexts.settle(self.timeline.now)
        for replica in self._replicas.values():
            replica.memory.settle(self.timeline.now)
            outcome.preemptions += replica.engine.counters.preemptions
            outcome.recomputed_tokens += replica.engine.counters.recomputed_tokens
            outcome.costs.append(replica.memory.cost)
        outcome.forecasts = [backend.forecast for backend in self._scheduler.backends.values()]
        return outcome

    # --- the runtime's part

    def post(self, event: Event) -> None:
        """Tell the scheduler, and do as it says."""
        scheduler = self._scheduler
        if not isinstance(event, Tick):
            self._moved = event.at
        for decision in scheduler.handle(event):
            self._perform(decision)
        if self._check:
            scheduler.check_invariants()
        if self._held_back != bool(scheduler.waiting_calls):
            self._held_back = not self._held_back
            self._weigh_want()
        due = scheduler.next_deadline()
        if due is not None and (self._wake is None or due < self._wake):
            self._wake = due
            self._wakes += 1
            self.timeline.at(due, self._woken)

    def _woken(self) -> None:
        now = self.timeline.now
        self._wakes -= 1
        if self._wake is not None and now >= self._wake:
            if len(self.timeline) == self._wakes and now - self._moved > STILL_S:
                raise Standstill(
                    f"it stands still from {self._moved:,.0f} s on: {len(self._calls)} calls wait for room, "
                    "and whoever has it waits for them"
                )
            self._wake = None
            self.post(Tick(at=now))

    def _perform(self, decision: Decision) -> None:
        match decision:
            case Dispatch(call_id=call_id, backend_id=backend_id):
                # Not at once: this may be in the middle of what another event brings about.
                call, replica = self._calls[call_id], self._replicas[backend_id]
                self.timeline.at(self.timeline.now, lambda: self._send(call, replica))
            case Pause(program_id=program_id, backend_id=backend_id):
                if backend_id is not None:
                    self.outcome.programs[program_id].pauses += 1
                self._forget_context(program_id)
            case Touch(program_id=program_id, backend_id=backend_id):
                request, replica = self._latest[program_id], self._replicas[backend_id]
                self.timeline.at(self.timeline.now, lambda: self._touch(request, replica))
            case Refuse(message=message) | Cancel(message=message):
                raise AssertionError(f"nobody is refused by a scheduler that everybody waits for: {message}")
            case _:
                pass

    def _send(self, call: _Call, replica: Replica) -> None:
        self._forget_context(call.program_id)
        call.dispatched = self.timeline.now
        call.replica = replica
        self._latest[call.program_id] = call.job.request
        if call.job.request.prompt_tokens + call.job.request.output_tokens > self.machines.longest:
            self._finished(call, CallEnd.ENGINE_REFUSED)
        else:
            replica.add(call.job)

    def _touch(self, latest: Request, replica: Replica) -> None:
        request = Request(
            id=f"touch-{next(self._call_ids)}",
            prompt_tokens=latest.prompt_tokens,
            output_tokens=1,
            block_hashes=latest.block_hashes,
        )
        nobody = Job(
            request=request, known_tokens=latest.prompt_tokens, first=lambda: None, done=lambda: None
        )
        replica.add(nobody)

    def _first_token(self, call: _Call) -> None:
        call.first_token = self.timeline.now

    def _finished(self, call: _Call, end: CallEnd) -> None:
        now = self.timeline.now
        del self._calls[call.job.request.id]
        request = call.job.request
        completed = end is CallEnd.COMPLETED
        if completed:
            self.outcome.served.append(
                Served(
                    program_id=call.program_id,
                    answered=now,
                    wait_s=call.dispatched - call.arrived,
                    first_token_s=call.first_token - call.arrived,
                    total_s=now - call.arrived,
                    prompt_tokens=request.prompt_tokens,
                    output_tokens=request.output_tokens,
                    cached_tokens=request.cached_tokens,
                    known_tokens=call.job.known_tokens,
                )
            )
            assert call.replica is not None
            self._keep_context(call.program_id, call.replica, request.prompt_tokens + request.output_tokens)
        else:
            self.outcome.failed_calls += 1
        self.post(
            CallFinished(
                at=now,
                call_id=request.id,
                end=end,
                prompt_tokens=request.prompt_tokens if completed else None,
                completion_tokens=request.output_tokens if completed else None,
                cached_tokens=request.cached_tokens if completed else None,
            )
        )
        self.timeline.at(now, lambda: call.done(completed))

    # --- what agents ask for

    def prompts(self, session: Session) -> Prompts:
        """The names of what this session will send."""
        return Prompts(session, self.machines.block_size, self._systems, self._versions)

    def call(self, program_id: str, turn: Turn, prompt: Prompt, done: Callable[[bool], None]) -> None:
        """Send a turn; ``done`` hears whether it was answered."""
        now = self.timeline.now
        request = Request(
            id=f"call-{next(self._call_ids)}",
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            block_hashes=prompt.blocks,
        )
        job = Job(
            request=request,
            known_tokens=prompt.known_tokens,
            first=lambda: self._first_token(call),
            done=lambda: self._finished(call, CallEnd.COMPLETED),
        )
        call = _Call(program_id, job, now, done)
        self._calls[request.id] = call
        self.outcome.contexts.put(program_id, turn.prompt_tokens + turn.output_tokens, now)
        self.post(
            CallArrived(
                at=now,
                call_id=request.id,
                program_id=program_id,
                prompt_chars=turn.prompt_tokens * CHARS_PER_TOKEN,
                messages=self._messages(prompt),
                blocks=self._blocks(turn, prompt) if self._kv_events else None,
            )
        )

    def _messages(self, prompt: Prompt) -> Chain:
        """The prompt as the proxy sees it: hashes of its messages. The last one ends within a block."""
        chars = self.machines.block_size * CHARS_PER_TOKEN
        return Chain(
            keys=tuple(prompt.blocks[end - 1] for end in prompt.messages),
            ends=tuple(end * chars for end in prompt.messages),
        )

    def _blocks(self, turn: Turn, prompt: Prompt) -> Chain:
        """The prompt as an engine's cache sees it; the block of its last token is computed in any case."""
        size = self.machines.block_size
        count = (turn.prompt_tokens - 1) // size
        return Chain(keys=prompt.blocks[:count], ends=range(size, size * count + 1, size))

    def foresee(self, program_id: str, turn: Turn, gap_s: float) -> None:
        """A program's next call comes after this gap; only an oracle is told."""
        if isinstance(self._policy, Oracle):
            tokens = turn.prompt_tokens + turn.output_tokens
            self._policy.foresee(program_id, back_at=self.timeline.now + gap_s, tokens=tokens)

    def began(self, program_id: str) -> None:
        """A program sends its first call."""
        self.outcome.programs[program_id] = ProgramRun(started=self.timeline.now)

    def ended(self, program_id: str, alone_s: float) -> None:
        """A program is through, or has given up; by itself it would have taken ``alone_s``."""
        program = self.outcome.programs[program_id]
        program.ended, program.alone_s = self.timeline.now, alone_s
        self.outcome.contexts.put(program_id, 0, program.ended)
        self._forget_context(program_id)

    def _enter(self, start: Start) -> None:
        agent = Agent(self, start.session, group=start.group, done=self._root_done)
        self.timeline.at(start.at, agent.start)

    def _root_done(self, _: float) -> None:
        self._left -= 1
        following = next(self._to_come, None)
        if following is not None:
            self._enter(following)

    # --- the account of memory

    def _add_replica(self, name: str) -> None:
        machines = self.machines
        replica = Replica(
            name,
            machines.preset,
            machines.kv_tokens,
            machines.block_size,
            self.timeline,
            (lambda stored, keys: self._published(name, stored, keys)) if self._kv_events else None,
        )
        replica.queueing = lambda waits: self._queues(name, waits=waits)
        self._replicas[name] = replica
        self.post(BackendAdded(at=0.0, backend_id=name))
        capacity = replica.engine.capacity_tokens
        self.post(BackendReported(at=0.0, backend_id=name, healthy=True, capacity_tokens=capacity))
        if self._kv_events:
            self.post(PrefixCleared(at=0.0, backend_id=name, exact=True))

    def _published(self, name: str, stored: bool, keys: Sequence[int]) -> None:
        event = PrefixStored if stored else PrefixEvicted
        self.post(event(at=self.timeline.now, backend_id=name, keys=keys))

    def _keep_context(self, program_id: str, replica: Replica, tokens: int) -> None:
        replica.memory.settle(self.timeline.now)
        replica.memory.held += tokens
        self._idle[program_id] = (replica, tokens)

    def _forget_context(self, program_id: str) -> None:
        if program_id in self._idle:
            replica, tokens = self._idle.pop(program_id)
            replica.memory.settle(self.timeline.now)
            replica.memory.held -= tokens

    def _queues(self, name: str, *, waits: bool) -> None:
        if waits:
            self._queueing.add(name)
        else:
            self._queueing.discard(name)
        self._weigh_want()

    def _weigh_want(self) -> None:
        """What is idle is wanted if the scheduler holds calls back, or they queue at another engine."""
        for name, replica in self._replicas.items():
            replica.memory.settle(self.timeline.now)
            replica.memory.wanted = self._held_back or bool(self._queueing - {name})


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way; times are virtual seconds."""

    program_id: str
    job: Job
    arrived: float
    done: Callable[[bool], None]
    dispatched: float = 0.0
    first_token: float = 0.0
    replica: Replica | None = None
