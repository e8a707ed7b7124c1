"""The same work in the simulator: what it says of targets that it can play, to compare with what they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engines.run import WORKLOAD
from benchmarks.engines.targets import Route, Target, Telling
from thunder_server.core import CapSettings, PaperSettings, Policy, make_policy
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Machines, Start
from thunder_server.simulation.study import Study, Workload
from thunder_server.simulation.workload import Session


def simulate(
    target: Target, sessions: Sequence[Session], seed: int, at_a_time: int, machines: Machines
) -> dict[str, Any] | None:
    """The row of a simulated run; ``None`` for targets that only exist outside."""
    if target.route not in (Route.DIRECT, Route.THUNDER):
        return None
    explicit = target.telling is Telling.EXPLICIT
    study = Study(
        workload=Workload(name=WORKLOAD, starts=tuple(Start(session=session) for session in sessions)),
        machines=machines,
        signals=Signals.EXPLICIT if explicit else Signals.INFERRED,
        seed=seed,
        at_a_time=target.at_a_time or at_a_time,
    )
    return study.run(target.name, policy_of(target)).row


def policy_of(target: Target) -> Policy:
    """Talking to engines directly is what ``passthrough`` does, but for who talks to which."""
    name, _, number = (target.policy or "passthrough").partition(":")
    if name == "cap":
        return make_policy("cap", CapSettings(programs=int(number)))
    if name == "paper" and number:
        return make_policy("paper", PaperSettings(decay=float(number)))
    return make_policy(name)
