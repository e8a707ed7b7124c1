"""What the operator may turn; figures are in seconds unless they say otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_server.core.router import RouterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Times of the scheduler that do not belong to a policy.

    Example:
        >>> SchedulerConfig(max_wait_s=30.0).max_wait_s
        30.0
    """

    auto_lease_s: float = 600.0
    """Lease of a program that nobody opened: its first call or event did."""
    default_lease_s: float = 60.0
    """Lease of a program opened by ``PUT`` without a ``lease_s``."""
    max_wait_s: float = 540.0
    """How long a call may wait for its turn, unless it or its program says otherwise."""
    no_backend_after_s: float = 5.0
    """How long calls hope for a backend that could serve them before they are refused."""
    keep_terminated_s: float = 600.0
    """How long a terminated program stays visible and its id known."""
    supersede_after_s: float = 60.0
    """From this age on, a first attempt gives way to an identical request that is no declared retry."""
    router: RouterSettings = field(default_factory=RouterSettings)
    """How replicas are scored."""
    hibernate_after_s: float | None = None
    """How long a program is paused before its environment is too; ``None``: never."""
