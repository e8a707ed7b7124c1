"""What agents report while they run: one JSON object a line on their standard output.

Times are Unix seconds; all processes of a demo share one machine and so one clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of all records; ``program`` is the program's id."""

    kind: ClassVar[str]
    program: str

    def to_line(self) -> str:
        return json.dumps({"kind": self.kind} | asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Record):
    kind = "opened"
    name: str
    parent: str | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(Record):
    """A call is on its way, with about so many prompt tokens."""

    kind = "sending"
    at: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Called(Record):
    """A call has been answered.

    ``wait_s`` is how long the server held it, ``reusable_tokens`` how much of its prompt the program's
    previous prompt already held; ``cached_tokens`` is ``None`` where the engine does not say.
    """

    kind = "called"
    sent: float
    answered: float
    wait_s: float
    backend: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reusable_tokens: int

    @property
    def dispatched(self) -> float:
        return min(self.sent + self.wait_s, self.answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Record):
    """A call has failed for good, after the client's retries; its agent gives up."""

    kind = "failed"
    at: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted(Record):
    kind = "acted"
    tool: str
    started: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Record):
    kind = "closed"
    at: float


_KINDS = {kind.kind: kind for kind in (Opened, Sending, Called, Failed, Acted, Closed)}


def parse(line: str | bytes) -> Record:
    """The inverse of `Record.to_line`. Raises ``ValueError`` for anything else.

    >>> parse(Closed(program="p", at=1.5).to_line())
    Closed(program='p', at=1.5)
    """
    try:
        value: dict[str, Any] = json.loads(line)
        return _KINDS[value.pop("kind")](**value)
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"not a record: {line!r}") from wrong
