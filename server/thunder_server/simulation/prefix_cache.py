"""The paged prefix cache: KV in fixed-size blocks, found by the hash of everything up to a block's end.

The rules are vLLM's. A block is *held* while a sequence refers to it, else *free*. A free block keeps its
content, and can be found, until it is handed out again: blocks without content first, then the least
recently freed, and of one sequence its tail before its head, so that a chain is eaten from its end and
what is left of it is still a usable prefix.

Contexts have thousands of blocks and nothing here visits them one by one. The unit is the **run**:
consecutive blocks of a chain with the same holders. An idle agent's context is one run, whatever its
length, and a turn touches a handful. What makes this exact is that hashes are chained: equal hashes at one
place mean equal content everywhere before it, so runs are compared at their ends and divided by bisection.

Two simplifications against vLLM: equal content that two sequences compute at once is kept once, not twice;
and what a sequence generates can be found when it is over (or preempted), not while it runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Run:
    """Blocks ``start`` to ``end`` of a chain, held by the same sequences or by none."""

    __slots__ = ("end", "hashes", "holders", "parent", "start")

    def __init__(self, hashes: Sequence[int], start: int, end: int, parent: Run | None, holders: int) -> None:
        self.hashes = hashes
        self.start = start
        self.end = end
        self.parent = parent  # the run before it; only kept right while it is held
        self.holders = holders

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def head(self) -> int:
        """The hash that the run is found by."""
        return self.hashes[self.start]

    def matches_until(self, hashes: Sequence[int], limit: int) -> int:
        """Where a chain that has this run's head leaves it, at most ``limit``."""
        mine = self.hashes
        high = min(self.end, limit)
        if mine[high - 1] == hashes[high - 1]:
            return high
        low, high = self.start + 1, high - 1
        while low < high:
            middle = (low + high + 1) // 2
            if mine[middle - 1] == hashes[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


class Prefix(NamedTuple):
    """What is cached of a chain: its first ``blocks`` blocks, ``free`` of which nobody holds at present."""

    runs: Sequence[tuple[Run, int]]  # and until where each of them is part of it
    blocks: int
    free: int


class Holding:
    """What one sequence holds: ``shared`` blocks that can be found, up to run ``last``, then ``private``."""

    __slots__ = ("last", "private", "shared")

    def __init__(self) -> None:
        self.last: Run | None = None
        self.shared = 0
        self.private = 0

    @property
    def blocks(self) -> int:
        return self.shared + self.private


class PrefixCache:
    """``size`` blocks. A chain is given as the hashes of all its blocks from the first on, and never changes.

    >>> cache = PrefixCache(4)
    >>> first = cache.hold(cache.find([11, 12], 2))
    >>> cache.grow(first, 3), cache.free
    (True, 1)
    >>> cache.share(first, [11, 12], 2)
    >>> cache.release(first)
    >>> cache.free, cache.find([11, 12, 13], 3).blocks
    (4, 2)
    """

    def __init__(self, size: int, tell: Callable[[bool, Sequence[int]], None] | None = None) -> None:
        """``tell`` hears of blocks that can be found from now on (``True``), and that no longer can."""
        if size < 1:
            raise ValueError(f"a cache needs at least one block, not {size}")
        self.size = size
        self._tell = tell
        self.free = size
        self.saved = 0  # blocks that those who share would hold more of if nobody shared
        self._blank = size  # free blocks without content
        self._runs: dict[int, Run] = {}  # by head
        self._idle: OrderedDict[Run, None] = OrderedDict()  # without holders, the next to be evicted first

    def find(self, hashes: Sequence[int], limit: int) -> Prefix:
        """The longest cached prefix of the first ``limit`` blocks of a chain. Changes nothing."""
        runs: list[tuple[Run, int]] = []
        position = free = 0
        while position < limit and (run := self._runs.get(hashes[position])) is not None:
            until = run.matches_until(hashes, limit)
            if not run.holders:
                free += until - position
            runs.append((run, until))
            position = until  # inside the run, perhaps: another one may go on from there
        return Prefix(runs, position, free)

    def hold(self, prefix: Prefix) -> Holding:
        """Hold what ``find`` has just found."""
        holding = Holding()
        for run, until in prefix.runs:
            self._hold(holding, run, until)
        return holding

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Hand out as many blocks as make it ``blocks`` in all. ``False``, and none: too few are free."""
        missing = blocks - holding.shared - holding.private
        if missing > self.free:
            return False
        if missing > 0:
            self.free -= missing
            holding.private += missing
            if missing > self._blank:
                self._evict(missing - self._blank)
                missing = self._blank
            self._blank -= missing
        return True

    def share(self, holding: Holding, hashes: Sequence[int], blocks: int) -> None:
        """The private blocks among the chain's first ``blocks`` are full: from now on they can be found."""
        while (start := holding.shared) < blocks:
            last = holding.last
            known = self._runs.get(hashes[start])
            if known is not None:  # computed by another one meanwhile: use that and return our own
                self._hold(holding, known, known.matches_until(hashes, blocks))
                returned = holding.shared - start
                self._blank += returned
                self.free += returned
                holding.private -= returned
                continue
            holding.private -= blocks - start
            holding.shared = blocks
            if self._tell is not None:
                self._tell(True, hashes[start:blocks])
            if last is not None and last.holders == 1 and last.hashes is hashes:
                last.end = blocks
            else:
                holding.last = self._runs[hashes[start]] = Run(hashes, start, blocks, last, 1)

    def release(self, holding: Holding) -> None:
        """Give everything back; what is full stays to be found."""
        self.free += holding.private
        self._blank += holding.private
        run = holding.last
        while run is not None:
            parent = run.parent
            run.holders -= 1
            if run.holders:
                self.saved -= len(run)
            else:
                if parent is not None and parent.holders == 1:
                    # Both were ours alone, so they are evicted one after the other: one run from now on.
                    del self._runs[run.head]
                    parent.hashes, parent.end = run.hashes, run.end
                else:
                    self._idle[run] = None
                    self.free += len(run)
                run.parent = None
            run = parent
        holding.last, holding.shared, holding.private = None, 0, 0

    def _hold(self, holding: Holding, run: Run, until: int) -> None:
        """Extend a holding by a run that follows it, of which only what is before ``until`` is wanted."""
        if until < run.end:
            run = self._split(run, until)
        if not run.holders:
            del self._idle[run]
            self.free -= len(run)
            run.parent = holding.last
        else:
            self.saved += len(run)
        run.holders += 1
        holding.last, holding.shared = run, run.end

    def _split(self, run: Run, at: int) -> Run:
        """Divide a run; the part before ``at``. The rest keeps its holders, or its place among the idle."""
        front = Run(run.hashes, run.start, at, run.parent, run.holders)
        self._runs[front.head] = front
        run.start, run.parent = at, front
        self._runs[run.head] = run
        if not front.holders:
            self._idle[front] = None
        return front

    def _evict(self, blocks: int) -> None:
        """Make so many idle blocks lose their content."""
        while blocks:
            run = next(iter(self._idle))
            evicted = min(blocks, len(run))
            blocks -= evicted
            if self._tell is not None:
                self._tell(False, run.hashes[run.end - evicted : run.end])
            if evicted == len(run):
                del self._runs[run.head], self._idle[run]
            else:
                run.end -= evicted
            self._blank += evicted

    def check_invariants(self) -> None:
        """Every block is accounted for once, and found by its run alone; for tests."""
        for head, run in self._runs.items():
            assert head == run.head
            assert run.start < run.end
            assert (run in self._idle) == (not run.holders)
            if run.holders and run.parent is not None:
                assert run.parent.end == run.start
                assert run.parent.holders >= run.holders
        idle = sum(map(len, self._idle))
        assert set(self._idle) <= set(self._runs.values())
        assert self._blank >= 0
        assert self.free == self._blank + idle
        assert self.saved == sum(len(run) * (run.holders - 1) for run in self._runs.values() if run.holders)

    @property
    def shared_blocks(self) -> int:
        """Blocks that are held and can be found, each counted once; for tests."""
        return sum(len(run) for run in self._runs.values() if run.holders)
