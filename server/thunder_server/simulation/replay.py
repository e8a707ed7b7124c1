"""An agent: a session replayed, the next request at the previous answer plus the gap."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from thunder_server.core.events import ActingFinished, ActingStarted, Outcome, ProgramClosed, ProgramOpened
from thunder_server.simulation.workload import Gap, Session, Turn

if TYPE_CHECKING:
    from thunder_server.simulation.simulator import Simulator

EMITTER = "0" * 32
GUESS_SIGMA = 0.3
"""How well clients know their tools: two in three durations they announce are within a factor of 1.35."""
LEASE_S = 1e9  # clients that say when they end keep their leases alive meanwhile


class Signals(StrEnum):
    """What clients tell: phases, tools, durations and their end; or nothing but their calls."""

    EXPLICIT = "explicit"
    INFERRED = "inferred"


class Agent:
    """Replays one session and, in its gaps, its child sessions; as a client that tells what it does, or as
    one that only calls. ``done`` hears how long it would have taken by itself."""

    def __init__(
        self,
        simulator: Simulator,
        session: Session,
        *,
        done: Callable[[float], None],
        parent: str | None = None,
        group: str | None = None,
    ) -> None:
        self._sim = simulator
        self._session = session
        self._done = done
        self._fields = {"parent_id": parent, "group": group, "lease_s": LEASE_S}
        self._prompts = simulator.prompts(session)
        name = session.id.encode(errors="surrogatepass")  # JSON may hold what is no Unicode
        self._random = random.Random(name)  # noqa: S311 - the same for every policy
        self._turn = 0
        self._seq = 0
        self._children = 0
        self._longest_child_s = 0.0
        self._alone_s = 0.0  # on engines without queue, batch and eviction

    def start(self) -> None:
        self._sim.began(self._session.id)
        if self._tells:
            self._sim.post(ProgramOpened(at=self._now, program_id=self._session.id, fields=self._fields))
        self._send()

    @property
    def _now(self) -> float:
        return self._sim.timeline.now

    @property
    def _tells(self) -> bool:
        return self._sim.signals is Signals.EXPLICIT

    def _send(self) -> None:
        turn = self._session.turns[self._turn]
        prompt = self._prompts.next(turn)
        self._alone_s += self._sim.machines.preset.call_seconds(
            turn.prompt_tokens, turn.prompt_tokens - prompt.known_tokens, turn.output_tokens
        )
        self._sim.call(self._session.id, turn, prompt, self._answered)

    def _answered(self, answered: bool) -> None:
        self._turn += 1
        if not answered or self._turn == len(self._session.turns):
            self._end(Outcome.SUCCESS if answered else Outcome.ERROR)
            return
        turn = self._session.turns[self._turn]
        self._started(turn)
        self._children = len(turn.children)
        for child in turn.children:
            Agent(self._sim, child, done=self._child_done, parent=self._session.id).start()
        if not turn.children:
            self._rest()

    def _child_done(self, alone_s: float) -> None:
        self._longest_child_s = max(self._longest_child_s, alone_s)
        self._children -= 1
        if not self._children:
            self._rest()

    def _rest(self) -> None:
        """What is left of the gap when the children are done."""
        gap_s = self._session.turns[self._turn].gap_s
        self._alone_s += gap_s + self._longest_child_s
        self._longest_child_s = 0.0
        self._sim.foresee(self._session.id, self._session.turns[self._turn], gap_s)
        self._sim.timeline.at(self._now + gap_s, self._acted)

    def _acted(self) -> None:
        if self._tells:
            self._seq += 1
            self._sim.post(
                ActingFinished(
                    at=self._now,
                    program_id=self._session.id,
                    emitter=EMITTER,
                    seq=self._seq,
                    client_at=self._now,
                    call_id=str(self._turn),
                )
            )
        self._send()

    def _started(self, turn: Turn) -> None:
        expected = turn.gap_s * self._random.lognormvariate(0.0, GUESS_SIGMA)
        if not self._tells:
            return
        self._seq += 1
        self._sim.post(
            ActingStarted(
                at=self._now,
                program_id=self._session.id,
                emitter=EMITTER,
                seq=self._seq,
                client_at=self._now,
                call_id=str(self._turn),
                tool="task" if turn.children else "person" if turn.gap is Gap.HUMAN else "tool",
                # Nobody knows how long people think, or how long other agents work.
                expected_s=expected if turn.gap is Gap.TOOL and not turn.children else None,
            )
        )

    def _end(self, outcome: Outcome) -> None:
        if self._tells:
            self._sim.post(ProgramClosed(at=self._now, program_id=self._session.id, outcome=outcome))
        self._sim.ended(self._session.id, self._alone_s)
        self._done(self._alone_s)
