"""Random lives of resources: whatever happens, each goes exactly once, and only when nobody holds it.

The machine plays clients, workers and hosts that come and go. It keeps its own, simple account of who holds
what, and holds the ledger to it: a removal is asked for only once at a time, only for things that nobody
alive holds or wants kept, only on the account of those who declared them; and once the world calms down,
every thing that was declared and neither released nor kept has been reclaimed, spared or given up, once for
each who brought it.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.server.core.harness import Harness
from thunder_server.core.decisions import Reclaim, ResourceChanged
from thunder_server.core.events import Outcome
from thunder_server.core.resource_events import (
    FailedRetried,
    HostServed,
    HostUnserved,
    ReclaimEnd,
    ReclaimEnded,
)
from thunder_server.core.resources import TEARDOWN

PROGRAMS = st.sampled_from(["p1", "p2", "p3"])
HOSTS = st.sampled_from(["here", "there"])
KINDS = ("container", "image", "directory", "process", "port")
THINGS = st.tuples(st.sampled_from(KINDS), st.just("x"), HOSTS)
FINAL = {"reclaimed", "spared", "released", "kept"}


class Things(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.h = Harness("passthrough")
        self.states: dict[tuple, str] = {}  # of holdings: (program, generation, kind, ref, host)
        self.out: dict[tuple, Reclaim] = {}
        self.ends: Counter[tuple] = Counter()
        self.handled = self.h.handle
        self.h.handle = self.handle
        self.calls: list[str] = []

    def handle(self, event):
        said = self.handled(event)
        for decision in said:
            match decision:
                case ResourceChanged():
                    self.changed(decision)
                case Reclaim():
                    self.asked(decision)
        return said

    def changed(self, now: ResourceChanged) -> None:
        holding = (now.program_id, now.generation, now.kind, now.ref, now.host)
        before = self.states.get(holding)
        if now.state == "declared" and before in FINAL | {None}:
            self.ends[holding] = 0
        if now.state in ("reclaimed", "spared"):
            assert before == "reclaiming"
            self.ends[holding] += 1
            assert self.ends[holding] == 1, f"{holding} went twice"
        self.states[holding] = now.state

    def asked(self, reclaim: Reclaim) -> None:
        thing = (reclaim.kind, reclaim.ref, reclaim.host)
        assert thing not in self.out, f"{thing} is being removed already"
        self.out[thing] = reclaim
        assert reclaim.claims
        for claim in reclaim.claims:
            program = self.h.scheduler.program(claim.program_id)
            assert program is None or program.generation > 0
            assert claim.opened_at <= claim.ended_at
        claimants = {claim.program_id for claim in reclaim.claims}
        for (program_id, _, *key), state in self.states.items():
            if tuple(key) == thing:
                assert state not in ("declared", "shared"), f"{program_id} holds {thing}"
                assert state != "reclaiming" or program_id in claimants

    # --- clients

    @rule(program=PROGRAMS)
    def open(self, program):
        self.h.put(program, lease_s=20.0)

    @rule(program=PROGRAMS, thing=THINGS, keep=st.sampled_from([False, False, False, True]))
    def declare(self, program, thing, keep):
        kind, ref, host = thing
        self.h.declare(program, kind, ref, host=host, keep=keep)

    @rule(program=PROGRAMS, thing=THINGS)
    def release(self, program, thing):
        kind, ref, host = thing
        self.h.release(program, kind, ref, host=host)

    @rule(program=PROGRAMS, outcome=st.sampled_from(list(Outcome)))
    def close(self, program, outcome):
        self.h.close(program, outcome)
        self.h.close(program, outcome)  # a double cancel changes nothing

    @rule(program=PROGRAMS, final=st.booleans())
    def call(self, program, final):
        """Whose program may be closed, and opened again, while it runs."""
        self.h.backend("a", None)
        self.calls.append(self.h.call(program, final=final))

    @precondition(lambda self: self.calls)
    @rule()
    def finish(self):
        self.h.finish(self.calls.pop(0))

    # --- workers

    @precondition(lambda self: self.out)
    @rule(data=st.data(), end=st.sampled_from([*ReclaimEnd]), retryable=st.booleans(), twice=st.booleans())
    def answer(self, data, end, retryable, twice):
        thing = data.draw(st.sampled_from(sorted(self.out)))
        del self.out[thing]
        self.ended(thing, end, retryable)
        if twice and thing not in self.out:  # else there is no telling the two apart
            self.ended(thing, ReclaimEnd.SPARED, retryable)

    def ended(self, thing, end, retryable=True):
        kind, ref, host = thing
        said = {"kind": kind, "ref": ref, "host": host, "reason": "r"}
        self.h.handle(ReclaimEnded(at=self.h.now, **said, end=end, retryable=retryable))

    @rule(host=HOSTS)
    def serve(self, host):
        self.h.handle(HostServed(at=self.h.now, host=host))

    @rule(host=HOSTS)
    def lose(self, host):
        for thing in [thing for thing in self.out if thing[2] == host]:
            del self.out[thing]
        self.h.handle(HostUnserved(at=self.h.now, host=host))

    @rule(program=st.sampled_from([None, "p1"]))
    def gc(self, program):
        self.h.handle(FailedRetried(at=self.h.now, program_id=program))

    @rule(seconds=st.sampled_from([0.3, 1.0, 20.0, 700.0]))
    def time_passes(self, seconds):
        self.h.run_to(self.h.now + seconds)

    def teardown(self):
        """The world calms down: workers do all they are asked for."""
        for host in ("here", "there"):
            self.serve(host)
        while self.calls:
            self.finish()
        for program in ("p1", "p2", "p3"):
            self.h.close(program, Outcome.SUCCESS)
        self.gc(None)
        for _ in range(100):
            for thing in list(self.out):
                del self.out[thing]
                self.ended(thing, ReclaimEnd.GONE)
            self.h.run_to(self.h.now + 1.0)
        assert not self.out
        left = {holding: state for holding, state in self.states.items() if state not in FINAL}
        assert not left
        self.h.run_to(self.h.now + 700.0)
        holdings = list(self.h.scheduler.ledger.holdings)
        assert all(holding.state.value == "kept" for holding in holdings)
        assert not self.h.scheduler.ledger.holdings.things
        assert not self.h.scheduler.programs


TestThings = Things.TestCase
TestThings.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
assert set(KINDS) < set(TEARDOWN)
