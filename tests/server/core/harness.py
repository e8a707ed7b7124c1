"""A scheduler with a clock that the test moves and an engine that the test plays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from thunder_server.core import PaperSettings, Scheduler, SchedulerConfig, make_policy
from thunder_server.core.decisions import Cancel, Decision, Dispatch, Refuse
from thunder_server.core.events import (
    ActingFinished,
    ActingStarted,
    BackendAdded,
    BackendReported,
    CallArrived,
    CallEnd,
    CallFinished,
    ClientEvent,
    Event,
    HeartbeatReceived,
    ProgramClosed,
    ProgramOpened,
    ResourceDeclared,
    ResourceReleased,
    Tick,
)
from thunder_server.core.policies import Policy

EMITTER = "e" * 32


class Harness:
    """Hands events in, checks the invariants after each, and keeps all decisions.

    ``chars`` of a prompt are given as tokens times four, which is what the scheduler takes at first.
    """

    def __init__(self, policy: str | Policy = "paper", settings=None, **config) -> None:
        made = make_policy(policy, settings) if isinstance(policy, str) else policy
        self.scheduler = Scheduler(policy=made, config=SchedulerConfig(**config))
        self.now = 0.0
        self.decisions: list[Decision] = []
        self._ids = itertools.count(1)
        self._seq = itertools.count(1)

    # --- the clock

    def after(self, seconds: float) -> Harness:
        self.now += seconds
        return self

    def run_to(self, at: float) -> list[Decision]:
        """Let time pass, waking the scheduler exactly when it asks for it."""
        said = []
        while (due := self.scheduler.next_deadline()) is not None and due <= at:
            self.now = max(self.now, due)
            said += self.handle(Tick(at=self.now))
        self.now = at
        return said + self.handle(Tick(at=at))

    # --- events

    def handle(self, event: Event) -> list[Decision]:
        said = self.scheduler.handle(event)
        self.scheduler.check_invariants()
        self.decisions += said
        return said

    def backend(self, backend_id: str, capacity: int | None = 1000, **kw) -> list[Decision]:
        weight = kw.pop("weight", 1.0)
        said = self.handle(BackendAdded(at=self.now, backend_id=backend_id, weight=weight))
        return said + self.report(backend_id, capacity, **kw)

    def report(self, backend_id: str, capacity: int | None = 1000, **kw) -> list[Decision]:
        kw.setdefault("healthy", True)
        return self.handle(
            BackendReported(at=self.now, backend_id=backend_id, capacity_tokens=capacity, **kw)
        )

    def call(self, program_id: str | None, tokens: int = 100, **kw) -> str:
        """A call arrives; its id."""
        call_id = kw.pop("call_id", None) or f"c{next(self._ids)}"
        kw.setdefault("prompt_chars", tokens * 4)
        kw.setdefault("anonymous_id", f"anonymous-{call_id}")
        self.handle(CallArrived(at=self.now, call_id=call_id, program_id=program_id, **kw))
        return call_id

    def finish(
        self,
        call_id: str,
        prompt: int | None = 100,
        completion: int | None = 0,
        cached: int | None = None,
        end: CallEnd = CallEnd.COMPLETED,
    ) -> list[Decision]:
        return self.handle(
            CallFinished(
                at=self.now,
                call_id=call_id,
                end=end,
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=cached,
            )
        )

    def fail(self, call_id: str, end: CallEnd) -> list[Decision]:
        return self.finish(call_id, None, None, end=end)

    def turn(self, program_id: str, tokens: int, **kw) -> None:
        """A whole call that leaves the program acting with this context."""
        self.finish(self.call(program_id, tokens, **kw), tokens)

    def put(self, program_id: str, *, environment=None, age_s: float = 0.0, **fields) -> list[Decision]:
        return self.handle(
            ProgramOpened(
                at=self.now, program_id=program_id, fields=fields, environment=environment, age_s=age_s
            )
        )

    def close(self, program_id: str, outcome, generation=None) -> list[Decision]:
        return self.handle(
            ProgramClosed(at=self.now, program_id=program_id, outcome=outcome, generation=generation)
        )

    def client(self, event: type[ClientEvent], program_id: str, **kw) -> list[Decision]:
        kw.setdefault("emitter", EMITTER)
        kw.setdefault("seq", next(self._seq))
        return self.handle(event(at=self.now, program_id=program_id, client_at=self.now, **kw))

    def acting(self, program_id: str, call_id: str = "t1", tool: str = "bash", **kw) -> list[Decision]:
        return self.client(ActingStarted, program_id, call_id=call_id, tool=tool, **kw)

    def acted(self, program_id: str, call_id: str = "t1", **kw) -> list[Decision]:
        return self.client(ActingFinished, program_id, call_id=call_id, **kw)

    def heartbeat(self, program_id: str, **kw) -> list[Decision]:
        return self.client(HeartbeatReceived, program_id, **kw)

    def declare(self, program_id: str, kind: str, ref: str, **kw) -> list[Decision]:
        return self.client(ResourceDeclared, program_id, kind=kind, ref=ref, **kw)

    def release(self, program_id: str, kind: str, ref: str, **kw) -> list[Decision]:
        return self.client(ResourceReleased, program_id, kind=kind, ref=ref, **kw)

    # --- looking

    def view(self, program_id: str) -> dict:
        program = self.scheduler.program(program_id)
        assert program is not None, f"{program_id} is not known"
        return self.scheduler.view(program, self.now)

    def status(self, *program_ids: str) -> list[str]:
        return [self.view(program_id)["status"] for program_id in program_ids]

    def on(self, program_id: str) -> str | None:
        return self.view(program_id)["backend"]

    def running(self, call_id: str) -> str | None:
        """Where a live call runs; ``None`` while it waits."""
        call = self.scheduler.call(call_id)
        assert call is not None, f"{call_id} is over"
        return call.backend_id

    def used(self, backend_id: str) -> float:
        return self.scheduler.backends[backend_id].used(self.now)


def paper(**settings) -> Harness:
    return Harness("paper", PaperSettings(**settings))


def of_type(decisions: Iterable[Decision], *types) -> list:
    return [decision for decision in decisions if isinstance(decision, types)]


def ends(decisions: Iterable[Decision]) -> list[str]:
    """Calls that the scheduler ended by itself."""
    return [decision.call_id for decision in of_type(decisions, Refuse, Cancel)]


def dispatched(decisions: Iterable[Decision]) -> list[str]:
    return [decision.call_id for decision in of_type(decisions, Dispatch)]
