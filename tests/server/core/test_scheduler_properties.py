"""Random lives of programs, calls and backends, under every policy, against the invariants.

The machine plays clients, engines and the runtime. It holds the scheduler to its word: a call is dispatched
only while it waits, only to a backend that can take it, and ends exactly once; nobody is placed without
room; and once the world calms down, every call that still waits is served or refused, every program ends by
its lease, and nothing is left of anything.
"""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.server.core.harness import Harness
from thunder_server.core import CapSettings, PaperSettings
from thunder_server.core.decisions import Cancel, Dispatch, Refuse, Resumed
from thunder_server.core.events import (
    BackendAdded,
    BackendDrained,
    BackendRemoved,
    BackendReported,
    CallArrived,
    CallConnectFailed,
    CallEnd,
    CallFinished,
    CallProgressed,
    Outcome,
    Tick,
    WeightSyncBegan,
    WeightSyncEnded,
)
from thunder_server.core.policies import Evict, KeepWarm, Paper, PhasePolicy, PhaseSettings, make_policy
from thunder_server.core.policies.cap import Cap
from thunder_server.core.program import Phase, State

PROGRAMS = st.sampled_from(["p1", "p2", "p3", "p4", "p5"])
BACKENDS = st.sampled_from(["a", "b", "c"])
MODELS = st.sampled_from([None, None, "m1", "m2"])
SERVED = st.sampled_from([None, None, frozenset({"m1"}), frozenset({"m1", "m2"})])
CAPACITIES = st.sampled_from([None, 50, 400, 1000])
TOKENS = st.sampled_from([0, 1, 30, 200, 450, 2000])
PAUSES = st.sampled_from([0.0, 0.0, 0.1, 0.9, 3.0, 5.0, 8.0, 61.0, 601.0])


class CheckedPaper(Paper):
    """Looks at every placement the moment it is made."""

    def restore(self, fleet, queue, at):
        for place in super().restore(fleet, queue, at):
            backend = place.backend
            assert place.program in queue
            assert backend in fleet.open_to(place.program)
            assert backend.used(at) + place.program.need <= backend.limit + 1e-6
            yield place


class CheckedPhase(PhasePolicy):
    """Looks at every placement, and at who makes room for it, the moment it is made."""

    def restore(self, fleet, queue, at):
        for intent in super().restore(fleet, queue, at):
            program = intent.program
            if isinstance(intent, Evict):
                assert program.state is State.PLACED
                assert program.phase is Phase.ACTING
            elif isinstance(intent, KeepWarm):
                assert program.phase is Phase.ACTING
                assert program.resident
            else:
                backend = intent.backend
                assert program in queue
                assert backend in fleet.open_to(program)
                assert backend.used(at) + program.need <= backend.limit + 1e-6
            yield intent


class Lives(RuleBasedStateMachine):
    policy = staticmethod(lambda: make_policy("passthrough"))

    @staticmethod
    def has_room(world, program) -> bool:
        """Whether some backend could take the program, as its policy sees it."""
        backends = world.fleet.open_to(program)
        match world.policy:
            case Cap(settings=settings):
                return any(len(backend.programs) < settings.programs for backend in backends)
            case Paper(settings=settings) as paper:
                # With decay, room grows between two looks.
                room = paper.room(world.fleet, program, world.now)
                return settings.decay == 1 and room >= max(1, program.need)
            case PhasePolicy() as phase:
                # What is worth displacing, and the room for growth, change with time; others than the first
                # may have to wait.
                now, fleet = world.now, world.fleet
                idle = any(p.phase is Phase.ACTING for b in fleet.values() for p in b.programs)
                first = world.queue.position(program) == 1
                return first and not idle and phase._fit(fleet, program, now) is not None
            case _:
                return bool(backends)

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness(self.policy(), max_wait_s=30.0)
        self.h.handle = self.handle
        self.scheduler = self.h.scheduler
        self.live: dict[str, CallArrived] = {}  # calls not ended
        self.running: dict[str, str] = {}
        self.ended: set[str] = set()

    def handle(self, event):
        if isinstance(event, CallArrived):
            self.live[event.call_id] = event
        # What was due before the event is decided by how things stood then.
        before = {backend_id: copy(backend) for backend_id, backend in self.scheduler.backends.items()}
        held = self.scheduler.held
        decisions = self.scheduler.handle(event)
        if held and not any(isinstance(decision, Resumed) for decision in decisions):
            assert not any(isinstance(decision, Dispatch) for decision in decisions)
        if isinstance(event, CallConnectFailed):
            del self.running[event.call_id]
        for decision in decisions:
            match decision:
                case Dispatch(call_id=call_id, backend_id=backend_id):
                    assert call_id in self.live
                    assert call_id not in self.running
                    assert decision.waited_s >= 0
                    model = self.live[call_id].model
                    then, now = before.get(backend_id), self.scheduler.backends.get(backend_id)
                    assert any(backend is not None and backend.serves(model) for backend in (then, now))
                    self.running[call_id] = backend_id
                case Refuse(call_id=call_id):
                    assert call_id not in self.running
                    self.end(call_id)
                case Cancel(call_id=call_id, backend_id=backend_id):
                    assert self.running.pop(call_id) == backend_id
                    self.end(call_id)
        if isinstance(event, CallFinished) and event.call_id in self.live:
            self.running.pop(event.call_id, None)
            self.end(event.call_id)
        self.scheduler.check_invariants()
        return decisions

    def end(self, call_id):
        assert call_id not in self.running
        del self.live[call_id]
        assert call_id not in self.ended
        self.ended.add(call_id)

    @initialize(capacities=st.lists(CAPACITIES, min_size=0, max_size=2))
    def begin(self, capacities):
        for backend, capacity in zip("ab", capacities, strict=False):
            self.h.backend(backend, capacity)

    # --- clients

    @rule(
        program=PROGRAMS,
        tokens=TOKENS,
        model=MODELS,
        digest=st.sampled_from([b"", b"x", b"y"]),
        is_retry=st.booleans(),
        final=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([None, None, 0, 5, -1]),
        max_wait_s=st.sampled_from([None, None, 0.0, 2.0]),
    )
    def call(self, program, tokens, **kw):
        self.h.call(program, tokens, **kw)

    @rule(program=PROGRAMS, tokens=TOKENS, completion=st.sampled_from([0, 300]))
    def turn(self, program, tokens, completion):
        call_id = self.h.call(program, tokens)
        if call_id in self.running:
            self.h.finish(call_id, tokens, completion)

    @rule(tokens=TOKENS, model=MODELS)
    def untagged_call(self, tokens, model):
        self.h.call(None, tokens, model=model)

    @rule(program=PROGRAMS, lease_s=st.sampled_from([1.0, 60.0]), priority=st.sampled_from([0, 3]))
    def put(self, program, lease_s, priority):
        self.h.put(program, lease_s=lease_s, priority=priority)

    @rule(program=PROGRAMS, outcome=st.sampled_from(list(Outcome)), generation=st.sampled_from([None, 1]))
    def close(self, program, outcome, generation):
        self.h.close(program, outcome, generation)

    @rule(
        program=PROGRAMS,
        call_id=st.sampled_from(["t1", "t2"]),
        start=st.booleans(),
        expected_s=st.sampled_from([None, 0.5, 400.0]),
    )
    def act(self, program, call_id, start, expected_s):
        if start:
            self.h.acting(program, call_id, expected_s=expected_s)
        else:
            self.h.acted(program, call_id)

    @rule(program=PROGRAMS, seq=st.integers(0, 3))
    def heartbeat(self, program, seq):
        self.h.heartbeat(program, seq=seq, emitter="other")

    # --- engines

    @precondition(lambda self: self.running)
    @rule(data=st.data(), produced=st.sampled_from([0, 10, 300]))
    def progress(self, data, produced):
        call_id = data.draw(st.sampled_from(sorted(self.running)))
        self.handle(CallProgressed(at=self.h.now, call_id=call_id, completion_tokens=produced))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        prompt=TOKENS,
        completion=st.sampled_from([None, 0, 20]),
        usage=st.booleans(),
        hit=st.sampled_from([None, 0.0, 0.9]),
    )
    def complete(self, data, prompt, completion, usage, hit):
        call_id = data.draw(st.sampled_from(sorted(self.running)))
        cached = None if hit is None else round(hit * prompt)
        self.h.finish(call_id, prompt if usage else None, completion, cached)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), end=st.sampled_from([e for e in CallEnd if e is not CallEnd.COMPLETED]))
    def break_off(self, data, end):
        call_id = data.draw(st.sampled_from(sorted(self.live)))
        self.h.fail(call_id, end if call_id in self.running else CallEnd.CLIENT_GONE)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def end_late(self, data):
        call_id = data.draw(st.sampled_from(sorted(self.ended)))
        self.h.run_to(self.h.now)
        assert self.h.fail(call_id, CallEnd.CLIENT_GONE) == []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def refuse_connection(self, data):
        call_id = data.draw(st.sampled_from(sorted(self.running)))
        self.handle(CallConnectFailed(at=self.h.now, call_id=call_id, backend_id=self.running[call_id]))

    # --- backends

    @rule(backend=BACKENDS, capacity=CAPACITIES, weight=st.sampled_from([0.5, 1.0, 2.0]))
    def add(self, backend, capacity, weight):
        self.handle(BackendAdded(at=self.h.now, backend_id=backend, capacity_tokens=capacity, weight=weight))

    @rule(backend=BACKENDS, capacity=CAPACITIES, models=SERVED)
    def report(self, backend, capacity, models):
        self.h.report(backend, capacity, models=models)

    @rule(backend=BACKENDS, how=st.sampled_from(["down", "down", "drained", "removed"]))
    def lose(self, backend, how):
        if how == "down":
            self.h.report(backend, healthy=False)
        else:
            kind = BackendRemoved if how == "removed" else BackendDrained
            self.handle(kind(at=self.h.now, backend_id=backend))

    @rule(begins=st.booleans(), watchdog_s=st.sampled_from([5.0, 300.0]))
    def sync_weights(self, begins, watchdog_s):
        if begins:
            self.handle(WeightSyncBegan(at=self.h.now, watchdog_s=watchdog_s))
            assert not any(backend.programs for backend in self.scheduler.backends.values())
        else:
            self.handle(WeightSyncEnded(at=self.h.now))
            assert not self.scheduler.held

    # --- time

    @rule(pause=PAUSES)
    def wait(self, pause):
        self.h.after(pause)

    @rule(pause=PAUSES)
    def run(self, pause):
        self.h.run_to(self.h.now + pause)

    @invariant()
    def running_calls_agree(self):
        running = {c for c, (_, call) in self.scheduler._world.calls.items() if call.backend_id}
        assert running == set(self.running)

    @invariant()
    def nobody_waits_beside_room(self):
        world = self.scheduler._world
        for program in () if self.scheduler.held else world.queue:
            assert not self.has_room(world, program), f"{program.id} fits and waits"

    def teardown(self):
        """The world calms down."""
        now = self.h.now
        self.handle(WeightSyncEnded(at=now))
        self.handle(BackendAdded(at=now, backend_id="z", capacity_tokens=100_000))
        self.handle(BackendReported(at=now, backend_id="z", healthy=True))
        for _ in range(4 * len(self.live) + 4):
            for call_id in sorted(self.running):
                self.h.finish(call_id, 10, 1)
            self.h.run_to(self.h.now + 10.0)
        assert not self.live
        self.h.run_to(self.h.now + 601.0)
        self.h.run_to(self.h.now + 601.0)
        assert not self.scheduler.programs
        assert not self.scheduler.queued_programs
        assert not self.scheduler.waiting_calls
        for backend in self.scheduler.backends.values():
            assert backend.used(self.h.now) == 0
            assert not backend.programs
            assert not backend.running
        assert self.handle(Tick(at=self.h.now)) == []
        assert self.scheduler.next_deadline() is None


def machine(name, make, *, examples=15, base=Lives):
    lives = type(name, (base,), {"policy": staticmethod(make)})
    case = lives.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case


def paper(**settings):
    return lambda: CheckedPaper(PaperSettings(**settings))


def warm():
    return CheckedPhase(PhaseSettings(keep_warm=True))


WINDOW = {"interval_s": 1, "decay": 1, "lambda_max": 0.9, "lambda_min": 0.5}

TestPassthrough = machine("PassthroughLives", lambda: make_policy("passthrough"))
TestCap = machine("CapLives", lambda: make_policy("cap", CapSettings(programs=2)))
TestPaper = machine("PaperLives", paper(), examples=25)
TestPaperWithWindow = machine("PaperWindowLives", paper(**WINDOW))
TestPhase = machine("PhaseLives", CheckedPhase, examples=25)
TestPhaseKeepingWarm = machine("WarmLives", warm, examples=25)
TestPaperWithoutDecay = machine("PaperUndecayedLives", paper(decay=1), examples=25)


def many(case):
    """The same for longer: not for every run, and not within the time of other tests."""
    return pytest.mark.slow(pytest.mark.timeout(900)(case))


TestManyCap = many(machine("ManyCapLives", lambda: make_policy("cap", CapSettings(programs=2)), examples=300))
TestManyPhase = many(machine("ManyPhaseLives", CheckedPhase, examples=300))
TestManyPhaseKeepingWarm = many(machine("ManyWarmLives", warm, examples=300))
TestManyPaper = many(machine("ManyPaperLives", paper(), examples=300))
TestManyPaperWithoutDecay = many(machine("ManyPaperUndecayedLives", paper(decay=1), examples=300))
TestManyPaperWithWindow = many(machine("ManyPaperWindowLives", paper(**WINDOW), examples=300))
