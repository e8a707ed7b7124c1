"""Ending a process that a program declared, and no other one that got its pid."""

from __future__ import annotations

import os
import re
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from thunder_sdk.reclaim.endings import Absent, Failed, Spared

GRACE: Final = 2.0  # s between SIGTERM and SIGKILL
_BOOT_TIME_ERROR: Final = 2.0  # s: the kernel says when it booted in whole ones
_REF: Final = re.compile(r"([1-9]\d{0,8})(?::(\d{1,20}))?", re.ASCII)


def end(ref: str, timeout: float, *, declared_before: float, protected: frozenset[int] = frozenset()) -> None:
    """Ends the process that `ref` names, ``pid:start time``: SIGTERM, and SIGKILL if it is still there.

    A pidfd holds on to the process that was looked at, so a signal can never reach another one that gets the
    same pid meanwhile. One that was started after `declared_before` (Unix seconds) is another one of the same
    name: that of an earlier boot is gone. Children are not touched: they are not what was declared. Raises an
    `Ending` unless it is gone within about `timeout` seconds.
    """
    match = _REF.fullmatch(ref)
    if match is None:
        raise Spared(f"{ref!r} names no process; it should be pid:start time")
    pid, started = int(match[1]), match[2]
    if started is None:
        raise Spared(f"process {pid} was declared without its start time, and pids are given again")
    if pid in protected or pid == 1:
        raise Spared(f"process {pid} is the one that reclaims, or the first of this machine")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Absent(f"process {pid} is gone") from None
    except OSError as error:
        raise Failed(f"process {pid} cannot be reached: {error.strerror}", retryable=False) from error
    try:
        if _unix(int(started)) > declared_before + _BOOT_TIME_ERROR:
            raise Absent(f"process {pid} is gone with an earlier boot of this machine")
        _end(handle, pid, started, timeout)
    finally:
        os.close(handle)


def _end(handle: int, pid: int, started: str, timeout: float) -> None:
    now = start_time(pid)
    # Still running after its start time was read: then it is the one whose start time was read.
    if _ended(handle, 0) or now is None:
        raise Absent(f"process {pid} is gone")
    if now != started:
        raise Absent(f"process {pid} is gone, its pid is another one's now")
    grace = min(GRACE, timeout / 2)
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, timeout - grace)):
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        except PermissionError:
            raise Failed(f"process {pid} belongs to another user", retryable=False) from None
        if _ended(handle, patience):
            return
    raise Failed(f"process {pid} has not ended though it was killed", retryable=True)


def _ended(handle: int, timeout: float) -> bool:
    """Whether the process of this pidfd ends within `timeout` seconds."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def _unix(ticks: int) -> float:
    """Unix seconds of a start time."""
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot: with its pid, its name. None if there is none."""
    with suppress(OSError):
        # The program's name in parentheses may hold anything; field 22 is the 20th after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None
