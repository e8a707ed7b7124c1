"""Programs that act: who has been at it for longest, and when each will be back."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from thunder_server.core.backend import Backend
from thunder_server.core.program import Program, State


def longest_idle(backend: Backend) -> Iterator[Program]:
    """Acting programs on a backend, who has been acting longest first: a program is charged anew whenever it
    begins to act, and charges keep their order. To be read before anybody is charged again."""
    return (
        program
        for program, charge in backend.charges.items()
        if charge.since is not None and program in backend.programs
    )


def away_s(program: Program, at: float) -> float:
    """Seconds until an acting program's next call, as far as anyone can tell.

    By what its client expects, else by what that tool has usually taken; of programs that tell nothing, by
    how long such programs have usually been silent. What is late by some time is taken to stay away as long
    again, and so is a call that is due. Of tools that run side by side, the last one counts. A parent is back
    no sooner than a child that waits in the queue.
    """
    if any(child.state is State.QUEUED for child in program.children):
        return inf
    if not program.acting:
        finished_at = program.tool_finished_at
        if finished_at is not None:
            return at - finished_at
        return program.gaps.left_s(at - program.acting_since)
    return max(
        block.usual.left_s(elapsed) if block.expected_s is None else abs(block.expected_s - elapsed)
        for block in program.acting.values()
        for elapsed in (at - block.started_at,)
    )
