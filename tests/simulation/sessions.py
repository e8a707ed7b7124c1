"""Sessions written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from thunder_server.simulation.simulator import Machines, Start
from thunder_server.simulation.time_model import EnginePreset, TimeModel
from thunder_server.simulation.workload import Gap, Session, Turn

# One second a step, ten more for a hundred prefill tokens: times can be told by heart.
PLAIN = EnginePreset(
    name="plain",
    about="an engine to reckon with",
    time=TimeModel(base=1.0, per_prefill_token=0.1),
    kv_tokens=1600,
    max_model_len=1000,
    max_num_seqs=8,
    max_num_batched_tokens=100,
)


def machines(kv_tokens: int = 1600, replicas: int = 1) -> Machines:
    return Machines(preset=PLAIN, replicas=replicas, kv_tokens=kv_tokens, block_size=10)


def turn(prompt: int, output: int = 10, *, shared: int = 0, gap: float = 0.0, children=()) -> Turn:
    kind = Gap.TOOL if shared else Gap.START
    return Turn(
        prompt_tokens=prompt,
        output_tokens=output,
        shared_tokens=shared,
        gap_s=gap,
        gap=kind,
        children=tuple(children),
    )


def session(name: str, *turns: Turn, system: int = 0, model: str = "m") -> Session:
    return Session(id=name, model=model, system_tokens=system, turns=turns)


def growing(name: str, turns: int, *, first: int = 100, step: int = 40, gap: float = 5.0) -> Session:
    """A context that grows by ``step`` a turn, ten of which are the answer."""
    sizes = [first + step * n for n in range(turns)]
    return session(
        name,
        turn(first),
        *(turn(now, shared=before, gap=gap) for before, now in itertools.pairwise(sizes)),
    )


def starts(sessions: Iterable[Session]) -> list[Start]:
    return [Start(session=one, at=float(n)) for n, one in enumerate(sessions)]
