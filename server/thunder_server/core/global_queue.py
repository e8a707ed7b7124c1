"""The one queue of all programs that have no backend and want one, for all replicas.

A policy says where each program sits (``Seat``): programs of one group differ only in their rank, so that
once one of a group finds no room, none after it does. Looking for whom to restore therefore costs a glance
at each group's head, not a walk over the queue; and not even that where ``lowest_rank`` says that nobody
fits, which counts when there are as many priorities as programs. Entries are never searched for: an outdated
one is dropped when it comes up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
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
        self._lowest: list[Entry] = []  # of all groups together
        self._put = 0  # entries made since all that were outdated were thrown out
        self._orders: dict[Program, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, program: Program) -> bool:
        return program in self._seats

    def seat(self, program: Program) -> Seat | None:
        """Where the program sits, if it is in the queue."""
        seated = self._seats.get(program)
        return None if seated is None else seated[0]

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
        heapq.heappush(self._lowest, entry)
        self._put += 1

    def discard(self, program: Program) -> None:
        """The program wants no place any longer."""
        if self._seats.pop(program, None) is not None:
            del self._orders[program]

    def groups(self) -> Iterator[Group]:
        """The groups there are, first served first."""
        for group in list(self._groups):
            if self._current(group):
                yield group
            else:
                del self._heaps[group]
                del self._groups[bisect_left(self._groups, group)]

    def lowest_rank(self) -> float:
        """The lowest rank of any program in the queue, whatever its group; infinite if there is none."""
        while self._lowest and not self._is_current(self._lowest[0]):
            heapq.heappop(self._lowest)
        return self._lowest[0].rank if self._lowest else inf

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
                if self._is_current(entry):
                    heapq.heappush(heap, entry)

    def position(self, program: Program) -> int:
        """1 for the first to be looked at. Reads the whole queue: for people, not for scheduling."""
        seat, entry = self._seats[program]
        mine = (seat.group, entry.rank, entry.order)
        return 1 + sum((s.group, e.rank, e.order) < mine for s, e in self._seats.values())

    def tidy(self) -> None:
        """Throw outdated entries out, if they may outnumber the others. Not while the queue is walked."""
        if self._put <= SLACK + 2 * len(self._seats):
            return
        self._put = 0
        for heap in self._heaps.values():
            heap.clear()
        self._lowest = [entry for _, entry in self._seats.values()]
        heapq.heapify(self._lowest)
        for seat, entry in self._seats.values():
            heapq.heappush(self._heaps[seat.group], entry)

    def _is_current(self, entry: Entry) -> bool:
        seated = self._seats.get(entry.program)
        return seated is not None and seated[1] is entry

    def _current(self, group: Group) -> bool:
        """Drop outdated entries from the head; whether one is left."""
        heap = self._heaps[group]
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return bool(heap)
