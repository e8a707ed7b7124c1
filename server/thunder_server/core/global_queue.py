"""The one queue of all programs that have no backend and want one, for all replicas.

A policy says where each program sits (``Seat``): programs of one group differ only in their rank, so that
once one of a group finds no room, none after it does. Looking for whom to restore therefore costs a glance
at each group's head, not a walk over the queue. Entries are never searched for: an outdated one is dropped
when it comes up.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from typing import NamedTuple

from thunder_server.core.program import Program

Group = tuple[int, int, str]
"""Served in ascending order: minus priority, the policy's class, the model (any: ``""``)."""

SLACK = 64
"""Outdated entries are thrown out when they outnumber the others by this."""


class Seat(NamedTuple):
    """A place in the queue; within its group the lowest rank is first, then who came first."""

    group: Group
    rank: float


class Entry(NamedTuple):
    rank: float
    order: int  # of the program's arrival in the queue
    serial: int  # of the entry: no two compare equal
    program: Program


class GlobalQueue:
    """Programs in the order of their seats."""

    def __init__(self) -> None:
        self._seats: dict[Program, tuple[Seat, Entry]] = {}
        self._heaps: dict[Group, list[Entry]] = {}
        self._groups: list[Group] = []
        self._orders: dict[Program, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, program: Program) -> bool:
        return program in self._seats

    def __iter__(self) -> Iterator[Program]:
        """All of them, in no order."""
        return iter(list(self._seats))

    def put(self, program: Program, seat: Seat) -> None:
        """Seat a program, or reseat it; it keeps its order of arrival as long as it stays in the queue."""
        seated = self._seats.get(program)
        if seated is not None and seated[0] == seat:
            return
        self._serial += 1
        order = self._orders.setdefault(program, self._serial)
        entry = Entry(seat.rank, order, self._serial, program)
        self._seats[program] = (seat, entry)
        heap = self._heaps.get(seat.group)
        if heap is None:
            heap = self._heaps[seat.group] = []
            insort(self._groups, seat.group)
        heapq.heappush(heap, entry)

    def discard(self, program: Program) -> None:
        """The program wants no place any longer."""
        if self._seats.pop(program, None) is not None:
            del self._orders[program]

    def groups(self) -> list[Group]:
        """The groups there are, first served first."""
        if sum(map(len, self._heaps.values())) > SLACK + 2 * len(self._seats):
            self._rebuild()
        for group in [group for group in self._groups if not self._current(group)]:
            del self._heaps[group]
            self._groups.remove(group)
        return list(self._groups)

    def walk(self, group: Group) -> Iterator[Program]:
        """The group's programs in order. Those still in the queue when the walk ends stay in it."""
        heap = self._heaps[group]
        passed: list[Entry] = []
        try:
            while self._current(group):
                entry = heapq.heappop(heap)
                passed.append(entry)
                yield entry.program
        finally:
            for entry in passed:
                if self._is_current(group, entry):
                    heapq.heappush(heap, entry)

    def position(self, program: Program) -> int:
        """1 for the first to be looked at. Reads the whole queue: for people, not for scheduling."""
        seat, entry = self._seats[program]
        mine = (seat.group, entry.rank, entry.order)
        return 1 + sum((s.group, e.rank, e.order) < mine for s, e in self._seats.values())

    def _rebuild(self) -> None:
        for heap in self._heaps.values():
            heap.clear()
        for seat, entry in self._seats.values():
            heapq.heappush(self._heaps[seat.group], entry)

    def _is_current(self, group: Group, entry: Entry) -> bool:
        seated = self._seats.get(entry.program)
        return seated is not None and seated[0].group == group and seated[1] is entry

    def _current(self, group: Group) -> bool:
        """Drop outdated entries from the head; whether one is left."""
        heap = self._heaps[group]
        while heap and not self._is_current(group, heap[0]):
            heapq.heappop(heap)
        return bool(heap)
