"""Leases of TCP ports on this machine: one lock per port, which the kernel frees when its holder dies.

The lock of a port is a Unix socket bound to a name in Linux's abstract namespace. Binding is atomic, needs no
file and no permission, works between users and containers that share a network, which are exactly those that
share its ports, and ends with the last copy of the socket.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from thunder_sdk.reclaim.endings import Failed, Spared

LOWEST: Final = 1
HIGHEST: Final = 65_535
_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EACCES})


class Lease:
    """The right to use `port`, until `release` or the end of this process. A forked child has it not."""

    __slots__ = ("_lock", "port")

    def __init__(self, port: int, lock: int) -> None:
        self.port = port
        self._lock = lock
        _held.add(self)

    def release(self) -> None:
        """Gives the port back. Harmless a second time."""
        with suppress(KeyError):
            _held.remove(self)
            os.close(self._lock)


_held: set[Lease] = set()


def lease(preferred: int | None, low: int, high: int) -> Lease | None:
    """A port that nobody leases or uses: `preferred` if it can be had, else one of the range; None if none.

    Ports are tried from a random one on, so that many who ask at once seldom meet.
    """
    for port in _candidates(preferred, low, high):
        lock = _lock(port)
        if lock is None:
            continue
        if _usable(port):
            return Lease(port, lock.detach())
        lock.close()
    return None


def require_free(ref: str) -> None:
    """Returns if nobody leases the port `ref` any more, else raises an `Ending`."""
    if not (ref.isascii() and ref.isdigit() and LOWEST <= int(ref) <= HIGHEST):
        raise Spared(f"{ref!r} names no port")
    lock = _lock(int(ref))
    if lock is None:
        raise Failed(
            f"port {ref} is still leased: its process lives, and frees it when it ends", retryable=True
        )
    lock.close()


def _candidates(preferred: int | None, low: int, high: int) -> Iterator[int]:
    if preferred is not None:
        yield preferred
    count = high - low + 1
    first = random.randrange(count)  # noqa: S311 - no secret
    for offset in range(count):
        yield low + (first + offset) % count


def _lock(port: int) -> socket.socket | None:
    """The lock of `port`, None if somebody has it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0thunder-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def _usable(port: int) -> bool:
    """Whether anybody could listen there now, on every address."""
    return not any(_refusal(family, port) in _TAKEN for family in (socket.AF_INET, socket.AF_INET6))


def _refusal(family: int, port: int) -> int | None:
    """Why the port cannot be bound on all addresses of `family`, as an errno; None if it can."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
    except OSError as error:
        return error.errno
    return None


def _after_fork_in_child() -> None:
    # The copies would keep the ports leased after the parent's end. Closing them takes nothing from it.
    for held in list(_held):
        held.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
