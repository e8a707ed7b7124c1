"""One LLM request of a program, from its arrival to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thunder_server.core.events import CallArrived
from thunder_server.core.prefix import Prompt


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """A live call. It waits while ``backend_id`` is ``None`` and runs while it names one; ended, it is gone.

    ``estimate`` is the prompt in tokens as guessed on arrival; the engine's usage replaces it only at the
    end, so until then the call weighs ``estimate`` plus what it has ``produced``.
    """

    request: CallArrived
    prompt: Prompt
    estimate: int
    deadline: float
    queued_at: float  # for first come, first served: a retry keeps the place of the attempt it replaces
    produced: int = 0
    waited_s: float = 0.0  # before its latest dispatch
    backend_id: str | None = None
    order: int = 0  # of dispatch, over all calls; decides whose usage is the program's context
    predicted: int = 0  # tokens of the prompt taken to be cached where it was dispatched to
    last_use: int = 0  # of what was there of it (see ``Belief``)
    coming: Sequence[int] = ()  # blocks it computes, that others hit meanwhile
    tried: set[str] = field(default_factory=set)  # backends that refused the connection

    @property
    def id(self) -> str:
        return self.request.call_id

    @property
    def arrived_at(self) -> float:
        return self.request.at

    @property
    def tokens(self) -> int:
        """What the call holds, or will hold, at its engine."""
        return self.estimate + self.produced
