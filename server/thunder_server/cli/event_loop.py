"""The event loop that servers run on."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable


def fastest_loop() -> Callable[[], AbstractEventLoop] | None:
    """uvloop's where it is built for the platform, else asyncio's own (``None``)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
