"""Where time and ids come from. Handed in, so that tests need neither sleep nor guess."""

from __future__ import annotations

import time
import uuid
from typing import Protocol

# Leases run on at the server while a laptop sleeps, and only CLOCK_BOOTTIME counts that time.
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Sources(Protocol):
    """The SDK's clocks and its dice."""

    def wall(self) -> float:
        """Unix seconds, for the ``at`` of events."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back and go on while the machine sleeps."""
        ...

    def new_hex(self) -> str:
        """32 hex digits, never the same twice."""
        ...


class SystemSources:
    """The real ones."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(_LEASE_CLOCK)

    def new_hex(self) -> str:
        return uuid.uuid4().hex
