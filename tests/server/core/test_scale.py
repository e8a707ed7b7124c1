"""What an event costs does not grow with the number of programs: counted in calls of Python functions, which
are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.server.core.harness import EMITTER
from thunder_server.core import CapSettings, PaperSettings, Scheduler, SchedulerConfig, make_policy
from thunder_server.core.decisions import Dispatch
from thunder_server.core.events import (
    BackendAdded,
    BackendReported,
    CallArrived,
    CallEnd,
    CallFinished,
    Event,
    HeartbeatReceived,
    ProgramClosed,
)

POLICIES = {
    "passthrough": lambda: make_policy("passthrough"),
    "cap": lambda: make_policy("cap", CapSettings(programs=20)),
    "paper": lambda: make_policy("paper", PaperSettings()),
    "paper without decay": lambda: make_policy("paper", PaperSettings(decay=1)),
}


class Life:
    """``size`` programs, each with a call, before two backends that hold forty of them."""

    def __init__(self, policy: str, size: int, priority: Callable[[int], int]) -> None:
        self.scheduler = Scheduler(policy=POLICIES[policy](), config=SchedulerConfig(max_wait_s=1e6))
        self.at = 0.0
        self.running: list[str] = []
        self.steps = 0
        self.priority = priority
        for backend in "ab":
            self.handle(BackendAdded(at=0.0, backend_id=backend, capacity_tokens=20 * 1000))
            self.handle(BackendReported(at=0.0, backend_id=backend, healthy=True))
        for number in range(size):
            self.call(number)

    def handle(self, event: Event) -> None:
        for decision in self.scheduler.handle(event):
            if isinstance(decision, Dispatch):
                self.running.append(decision.call_id)

    def call(self, number: int) -> None:
        self.at += 1e-3
        self.steps += 1
        self.handle(
            CallArrived(
                at=self.at,
                call_id=f"p{number} {self.steps}",
                program_id=f"p{number}",
                prompt_chars=3800 + self.steps % 7,
                priority=self.priority(number),
            )
        )

    def step(self, number: int) -> None:
        """A call ends; its program goes on with the next one, or others get its place."""
        self.at += 1e-3
        call_id = self.running.pop(0)
        program_id = call_id.split()[0]
        end = CallEnd.COMPLETED
        self.handle(
            CallFinished(at=self.at, call_id=call_id, end=end, prompt_tokens=950, completion_tokens=9)
        )
        beat = HeartbeatReceived(
            at=self.at, program_id=program_id, emitter=EMITTER, seq=self.steps, client_at=self.at
        )
        self.handle(beat)
        if number % 3:
            self.call(int(program_id[1:]))
        else:
            self.handle(ProgramClosed(at=self.at, program_id=program_id))

    def cost(self, steps: int = 30) -> int:
        """Python functions called in so many steps."""
        called = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal called
            called += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for number in range(steps):
                self.step(number)
        finally:
            sys.setprofile(before)
        return called


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "priority",
    [lambda number: 0, lambda number: number % 5, lambda number: number],
    ids=["one", "five", "each"],
)
def test_an_event_costs_the_same_with_five_times_as_many_programs(
    policy: str, priority: Callable[[int], int]
) -> None:
    few, many = (Life(policy, size, priority).cost() for size in (200, 1000))
    assert many < 1.5 * few, f"{few} function calls with 200 programs, {many} with 1000"
