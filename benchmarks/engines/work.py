"""The work: agent programs of known sizes and times, the same for every target of a seed.

Programs are the simulator's own `Session`s, so that `thunder simulate` can be given what a real engine was
given. Fixed work, not a fixed time: a system that thrashes does many first turns, which are short, and looks
busy in any window one cares to measure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from thunder_server.simulation.workload import Gap, Session, Turn

FAMILY = "fixed work"
SYSTEM_TOKENS = 64
SLOW_FACTOR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many programs, and what they are like. Sizes are tokens, times seconds.

    A program has ``turns`` turns, give or take half; its first prompt has ``first`` tokens, every later one
    ``growth`` more than the one before and its answer of ``output``. Tools take ``tool`` seconds, give or
    take half; a share of ``slow`` of them takes ten times as long.
    """

    programs: int = 48
    turns: int = 10
    first: int = 800
    growth: int = 184
    output: int = 24
    tool: float = 2.0
    slow: float = 0.0

    def largest_context(self) -> int:
        """Of the longest program that there can be."""
        return self.first + (self.turns + self.turns // 2) * (self.growth + self.output)


def sessions(shape: Shape, seed: int) -> list[Session]:
    """The programs of this seed.

    >>> [len(session.turns) for session in sessions(Shape(programs=3, turns=4), seed=0)]
    [5, 4, 2]
    """
    return [_session(shape, seed, number) for number in range(shape.programs)]


def place(session_id: str) -> int:
    """Which of its seed's programs a session is.

    >>> place("p17")
    17
    """
    return int(session_id.removeprefix("p"))


def _session(shape: Shape, seed: int, number: int) -> Session:
    rng = random.Random(f"{seed} {number}")
    turns: list[Turn] = []
    prompt, shared = shape.first, 0
    for index in range(rng.randint(max(1, shape.turns // 2), shape.turns + shape.turns // 2)):
        slow = SLOW_FACTOR if rng.random() < shape.slow else 1
        gap = shape.tool * rng.uniform(0.5, 1.5) * slow
        turns.append(
            Turn(
                prompt_tokens=prompt,
                output_tokens=shape.output,
                shared_tokens=shared,
                gap_s=gap if index else 0.0,
                gap=Gap.TOOL if index else Gap.START,
            )
        )
        shared = prompt
        prompt += shape.output + shape.growth
    system = min(SYSTEM_TOKENS, shape.first // 2)
    return Session(id=f"p{number}", model=FAMILY, system_tokens=system, turns=tuple(turns))
