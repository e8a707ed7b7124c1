"""Random lives of programs with environments, on top of those of programs and calls.

The machine plays whoever prepares, too. It holds the core to it that nothing is prepared twice at a time, no
queued program returns before its environment is there, nobody who waits for one is forgotten, and everything
that was made is reclaimed.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.server.core.test_scheduler_properties import (
    PROGRAMS,
    Lives,
    machine,
    many,
)
from thunder_server.core import CapSettings, SchedulerConfig
from thunder_server.core.decisions import (
    Errand,
    Hibernate,
    PrepareEnvironment,
    Reclaim,
    Restore,
    Survey,
    Wake,
)
from thunder_server.core.environment import USABLE
from thunder_server.core.events import EnvironmentWanted
from thunder_server.core.policies import make_policy
from thunder_server.core.resource_events import (
    EnvironmentAwaited,
    EnvironmentFailed,
    EnvironmentHibernated,
    EnvironmentPrepared,
    EnvironmentWoken,
    HostServed,
    HostUnserved,
    ReclaimEnd,
    ReclaimEnded,
    Surveyed,
)

HOST = "box"
WANTED = EnvironmentWanted(image="i", host=HOST, spec={"image": "i"})


class Sandboxes(Lives):
    def __init__(self) -> None:
        super().__init__()
        self.out: dict[tuple[str, str, int], Errand] = {}
        self.made: set[str] = set()
        self.calm = False

    @initialize(sleepy=st.booleans())
    def configure(self, sleepy):
        self.scheduler._world.config = SchedulerConfig(
            max_wait_s=30.0, hibernate_after_s=0.5 if sleepy else None
        )
        self.served(True)

    def handle(self, event):
        decisions = super().handle(event)
        for decision in decisions:
            match decision:
                case PrepareEnvironment() | Hibernate() | Wake() | Reclaim() | Survey():
                    self.asked(decision)
                case Restore(program_id=program_id, generation=generation):
                    program = self.scheduler.program(program_id)
                    never_waits = "more than any backend holds" in decision.reason
                    if program.generation == generation and program.environment is not None:
                        assert program.environment.state in USABLE or never_waits
        while self.calm and self.out:
            self.answer(next(iter(self.out)), well=True)
        return decisions

    def asked(self, errand):
        name = type(errand).__name__
        key = (name, getattr(errand, "ref", errand.program_id), errand.generation)
        assert key not in self.out, f"{key} is under way already"
        self.out[key] = errand
        if isinstance(errand, PrepareEnvironment):
            self.made.add(errand.name)

    def answer(self, key, *, well):
        errand = self.out.pop(key)
        whose = {"at": self.h.now, "program_id": errand.program_id, "generation": errand.generation}
        failed = EnvironmentFailed(**whose, reason="r", retryable=well is None)
        match errand:
            case PrepareEnvironment():
                self.handle(EnvironmentPrepared(**whose, container_id="c", seconds=1.0) if well else failed)
            case Hibernate():
                self.handle(EnvironmentHibernated(**whose) if well else EnvironmentWoken(**whose))
            case Wake():
                self.handle(EnvironmentWoken(**whose) if well else failed)
            case Survey():
                self.handle(Surveyed(at=self.h.now, host=HOST, objects=()))
            case Reclaim():
                thing = {"kind": errand.kind, "ref": errand.ref, "host": errand.host}
                end = ReclaimEnd.GONE if well else ReclaimEnd.FAILED
                if well:
                    self.made.discard(errand.ref)
                self.handle(ReclaimEnded(at=self.h.now, **thing, end=end, reason="r"))

    def served(self, yes):
        if not yes:
            self.out.clear()
        self.handle((HostServed if yes else HostUnserved)(at=self.h.now, host=HOST))

    @rule(program=PROGRAMS)
    def put_with_environment(self, program):
        self.h.put(program, lease_s=60.0, environment=WANTED)

    @rule(program=PROGRAMS)
    def await_environment(self, program):
        self.handle(EnvironmentAwaited(at=self.h.now, program_id=program))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), well=st.sampled_from([True, True, True, False, None]))
    def work(self, data, well):
        self.answer(data.draw(st.sampled_from(sorted(self.out))), well=well)

    @rule(yes=st.sampled_from([True, True, False]))
    def serve(self, yes):
        self.served(yes)

    def teardown(self):
        self.served(False)
        self.served(True)
        self.calm = True
        super().teardown()
        assert not self.made, "something that was made is left"
        assert not list(self.scheduler.ledger.holdings)
        environments = self.scheduler._environments
        assert not environments._known
        assert not environments._unready
        assert not environments._promised
        assert not environments._preparing


def phase():
    return make_policy("phase")


def two_a_backend():
    return make_policy("cap", CapSettings(programs=2))


TestSandboxesCap = machine("SandboxCap", two_a_backend, base=Sandboxes)
TestSandboxesPhase = machine("SandboxPhase", phase, base=Sandboxes)
TestManySandboxesCap = many(machine("ManySandboxCap", two_a_backend, examples=200, base=Sandboxes))
TestManySandboxesPhase = many(machine("ManySandboxPhase", phase, examples=200, base=Sandboxes))
