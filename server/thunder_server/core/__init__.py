"""The sans-IO scheduler: events in, decisions out.

It knows no clock, no randomness, no environment and no log: ``scheduler`` says how it works, ``events`` and
``decisions`` are all it speaks.
"""

from thunder_server.core.config import SchedulerConfig
from thunder_server.core.counters import Counters
from thunder_server.core.policies import (
    POLICIES,
    CapSettings,
    PaperSettings,
    PhaseSettings,
    Policy,
    make_policy,
    policy_of_text,
)
from thunder_server.core.program import Phase, Program, Status
from thunder_server.core.scheduler import Scheduler
from thunder_server.core.views import Why

__all__ = [
    "POLICIES",
    "CapSettings",
    "Counters",
    "PaperSettings",
    "Phase",
    "PhaseSettings",
    "Policy",
    "Program",
    "Scheduler",
    "SchedulerConfig",
    "Status",
    "Why",
    "make_policy",
    "policy_of_text",
]
