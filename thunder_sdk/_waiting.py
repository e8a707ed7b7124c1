"""Waiting for the server to have heard, in threads and in event loops, and what to do if it has not."""

from __future__ import annotations

import asyncio

from thunder_sdk import _process
from thunder_sdk._delivery import Patience
from thunder_sdk._exceptions import ThunderError
from thunder_sdk._sender import failure_of, logger


def in_event_loop() -> bool:
    """Whether blocking here would block an asyncio loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def delivered(patience: Patience = Patience.CALM) -> ThunderError | None:
    """Blocks for at most 2 s until all queued so far is with the server; why it is not, None if it is.

    In the sender's own thread it only queues.
    """
    process = _process.here()
    if process.sender.runs_here:
        return None
    return process.sender.flush(process.patience, _at_least(patience, process))


async def delivered_async(patience: Patience = Patience.CALM) -> ThunderError | None:
    """`delivered` without blocking the loop. In another library's loop it only queues."""
    if not in_event_loop():
        return None
    process = _process.here()
    delivery = process.sender.delivery(_at_least(patience, process))
    waiting = asyncio.wrap_future(delivery)
    waiting.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # it may come too late for us
    await asyncio.wait({waiting}, timeout=process.patience)
    return failure_of(delivery, 0.0)


def _at_least(patience: Patience, process: _process.Process) -> Patience:
    """With ``strict`` a server that was away a moment ago is tried again before anything is raised."""
    return Patience.EAGER if process.config.strict else patience


def insist(failure: ThunderError | None) -> None:
    """Raises `failure` if there is one."""
    if failure is not None:
        raise failure


def check_delivery(program_id: str, failure: ThunderError | None, propagating: BaseException | None) -> None:
    """Raises `failure` with ``strict``, unless that would hide the exception that is `propagating`."""
    if failure is None:
        return
    strict = _process.here().config.strict
    if strict and propagating is None:
        raise failure
    level = logger.warning if strict else logger.debug
    level("thunder: the end of program %s is not with the server yet: %s", program_id, failure)
