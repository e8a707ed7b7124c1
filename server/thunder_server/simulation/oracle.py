"""``oracle``: what ``phase`` would do if it knew how long tools take and how contexts grow.

The reference line of the simulator; no server can have it. As a program begins to act, the simulator tells
it when the next call will come, and how large it will be. It follows the rules of ``phase`` and leaves
nothing to chance: who gives way really stays away, who is waited for really comes back, and room is kept for
what the others will have grown by within ``horizon`` break-even times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thunder_server.core.backend import Backend
from thunder_server.core.fleet import Fleet
from thunder_server.core.policies.phase import PhasePolicy, PhaseSettings
from thunder_server.core.program import Program


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The next call of a program: when, and what it will hold with its answer."""

    back_at: float
    tokens: int


class Oracle(PhasePolicy):
    """Perfect knowledge of the next call of every program. For one run: it remembers what it was told."""

    name: ClassVar[str] = "oracle"

    def __init__(self, settings: PhaseSettings | None = None, horizon: float = 1.0) -> None:
        super().__init__(settings)
        self._horizon = horizon
        self._foreseen: dict[str, Foreseen] = {}

    def foresee(self, program_id: str, *, back_at: float, tokens: int) -> None:
        """The program's next call comes at ``back_at``; with its answer it will hold ``tokens``."""
        self._foreseen[program_id] = Foreseen(back_at, tokens)

    def _away_s(self, program: Program, at: float) -> float:
        foreseen = self._foreseen.get(program.id)
        if foreseen is None or foreseen.back_at < at:
            return super()._away_s(program, at)  # it waits for its children
        return foreseen.back_at - at

    def _lacking(self, fleet: Fleet, backend: Backend, program: Program, at: float) -> float:
        foreseen = self._foreseen.get(program.id)
        grown = 0 if foreseen is None else max(0, foreseen.tokens - program.need)
        return super()._lacking(fleet, backend, program, at) + grown

    def _reserve(self, backend: Backend, at: float) -> float:
        """What the programs on the backend will have grown by before long."""
        until = at + self._horizon * self._break_even_s(backend)
        return sum(
            max(0, foreseen.tokens - backend.charges[program].tokens)
            for program in backend.programs
            if (foreseen := self._foreseen.get(program.id)) is not None and foreseen.back_at <= until
        )
