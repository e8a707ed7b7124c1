"""Is a scheduler worth it for this traffic? Three questions, the first "no" to which settles it.

1. Do prompts repeat? What no prompt begins with again, no cache can give.
2. Is there more context in play than memory? While everything fits, an engine's own cache does as well.
3. Does it help? The traffic is replayed on simulated engines, without the scheduler and with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from thunder_server.core import make_policy
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.results import Outcome, quantiles
from thunder_server.simulation.study import Result, Study
from thunder_server.simulation.traffic import Traffic
from thunder_server.simulation.workload import Gap, Session

REPEATS_ENOUGH = 0.2
"""Below this share of repeated prompt tokens, caching is not what decides how fast engines are."""
FITS = 0.9
"""A working set that never exceeds this part of memory fits: the rest is for what blocks and outputs take."""
HELPS, HELPS_A_LOT = 1.05, 1.2
POINTS = 120
"""At so many moments the working set is told."""


class Verdict(StrEnum):
    """What to do about it."""

    WORTH_IT = "worth it"
    MAYBE = "maybe"
    DO_NOT_BOTHER = "do not bother"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSet:
    """The contexts of all programs in play over time, in tokens; ``over_time`` are pairs of seconds and the
    largest value since the moment before."""

    mean: float
    p95: float
    peak: int
    over_time: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Without the scheduler against with it: how many times as soon all work is done, and a program."""

    makespan: float
    program: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The answer and what it rests on. Sizes are tokens, times seconds; ``hit_rate`` is what engines said
    when the traffic was recorded, ``None`` where they did not."""

    source: str
    programs: int
    calls: int
    prompt_tokens: int
    output_tokens: int
    repeat_rate: float
    hit_rate: float | None
    gap_s: dict[str, float]
    kv_tokens: int
    working_set: WorkingSet
    explicit: Gain
    inferred: Gain
    verdict: Verdict
    reason: str
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def weigh(traffic: Traffic, study: Study, telling: Callable[[str], object] = lambda _: None) -> Worth:
    """Judge ``traffic``, of which ``study`` replays all or a part; ``telling`` hears what is simulated."""
    runs: list[Result] = []
    for policy, signals in (
        ("passthrough", Signals.EXPLICIT),
        ("phase", Signals.EXPLICIT),
        ("phase", Signals.INFERRED),
    ):
        telling(f"{policy}, signals {signals.value}")
        runs.append(replace(study, signals=signals).run(policy, make_policy(policy)))
    without, explicit, inferred = runs
    sessions = [session for start in traffic.starts for session in _family(start.session)]
    recorded = [
        _span([(call.at, call.prompt_tokens + call.output_tokens) for call in calls], calls[-1].ended)
        for calls in traffic.calls.values()
    ]
    working_set = over_time(recorded or _replayed(without.outcome))
    repeat_rate = repeated(sessions, traffic.repeated_tokens)
    kv_tokens = study.machines.kv_tokens * study.machines.replicas
    gains = [
        Gain(makespan=_makespan(without, run), program=_program(without, run)) for run in (explicit, inferred)
    ]
    verdict, reason = judge(
        repeat_rate, working_set, kv_tokens, gains[0].program if traffic.calls else gains[0].makespan
    )
    turns = [turn for session in sessions for turn in session.turns]
    return Worth(
        source=traffic.source.value,
        programs=len(traffic.starts),
        calls=len(turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        output_tokens=sum(turn.output_tokens for turn in turns),
        repeat_rate=round(repeat_rate, 4),
        hit_rate=None if traffic.hit_rate is None else round(traffic.hit_rate, 4),
        gap_s=quantiles(turn.gap_s for turn in turns if turn.gap is not Gap.START),
        kv_tokens=kv_tokens,
        working_set=working_set,
        explicit=gains[0],
        inferred=gains[1],
        verdict=verdict,
        reason=reason,
        rows=tuple(run.row for run in runs),
        notes=study.workload.notes,
    )


def judge(repeat_rate: float, working_set: WorkingSet, kv_tokens: int, gain: float) -> tuple[Verdict, str]:
    """The verdict, and why in one sentence."""
    share = working_set.peak / kv_tokens
    if repeat_rate < REPEATS_ENOUGH:
        return Verdict.DO_NOT_BOTHER, (
            f"only {repeat_rate:.0%} of the prompt tokens had been in a prompt before, "
            "so that there is little to keep in a cache"
        )
    if share <= FITS:
        return Verdict.DO_NOT_BOTHER, (
            f"everything fits: all contexts together never take more than {share:.0%} of the KV cache, "
            "and the engines' own prefix caching is all you need"
        )
    if gain < HELPS:
        return Verdict.DO_NOT_BOTHER, (
            f"contexts take up to {share:.0%} of the KV cache, but the replay was only {gain:.2f} times "
            "as fast with the scheduler"
        )
    return (
        Verdict.WORTH_IT if gain >= HELPS_A_LOT else Verdict.MAYBE,
        f"contexts take up to {share:.0%} of the KV cache, and the replay was {gain:.2f} times as fast "
        "with the scheduler",
    )


# --- how often prompts repeat


def repeated(sessions: Iterable[Session], known: int | None = None) -> float:
    """The share of prompt tokens that an endless cache would hold: ``known`` of them, or those that sessions
    have from their own turns before and from others of their family."""
    prompts = again = 0
    families: set[str] = set()
    for session in sessions:
        answered = 0
        for number, turn in enumerate(session.turns):
            prompts += turn.prompt_tokens
            if number:
                own = turn.shared_tokens
                # All of the last prompt comes back, and so its answer behind it.
                if own >= session.turns[number - 1].prompt_tokens:
                    own = max(own, min(answered, turn.prompt_tokens))
            else:
                own = 0
            again += max(own, session.system_tokens if session.model in families else 0)
            families.add(session.model)
            answered = turn.prompt_tokens + turn.output_tokens
    return max(again, known or 0) / prompts if prompts else 0.0


def _family(session: Session) -> Iterable[Session]:
    yield session
    for turn in session.turns:
        for child in turn.children:
            yield from _family(child)


# --- the working set

Span = Sequence[tuple[float, int]]
"""A program's context from a time on; the last one is 0."""


def _span(contexts: Sequence[tuple[float, int]], ended: float) -> Span:
    return [*contexts, (ended, 0)]


def _replayed(outcome: Outcome) -> list[Span]:
    contexts: dict[str, list[tuple[float, int]]] = {name: [] for name in outcome.programs}
    for call in outcome.served:
        contexts[call.program_id].append(
            (call.answered - call.total_s, call.prompt_tokens + call.output_tokens)
        )
    return [_span(points, outcome.programs[name].ended) for name, points in contexts.items()]


def over_time(spans: Iterable[Span]) -> WorkingSet:
    """The sum of contexts over time.

    >>> two = over_time([[(0.0, 100), (10.0, 0)], [(5.0, 100), (15.0, 0)]])
    >>> two.peak, round(two.mean)
    (200, 133)
    """
    changes: Counter[float] = Counter()
    for span in spans:
        before = 0
        for at, tokens in span:
            changes[at] += tokens - before
            before = tokens
    if not changes:
        return WorkingSet(mean=0.0, p95=0.0, peak=0, over_time=())
    begun, ended = min(changes), max(changes)
    total = 0
    levels: list[tuple[float, float, int]] = []  # from, seconds, tokens
    for at, following in pairwise([*sorted(changes), ended]):
        total += changes[at]
        levels.append((at - begun, following - at, total))
    length = max(ended - begun, 1e-9)
    return WorkingSet(
        mean=round(sum(seconds * tokens for _, seconds, tokens in levels) / length, 1),
        p95=_weighted(levels, 0.95 * length),
        peak=max(tokens for _, _, tokens in levels),
        over_time=_points(levels, length),
    )


def _weighted(levels: Sequence[tuple[float, float, int]], seconds: float) -> float:
    """The level that is not exceeded for so many seconds."""
    spent = 0.0
    for _, lasting, tokens in sorted(levels, key=lambda level: level[2]):
        spent += lasting
        if spent >= seconds:
            return tokens
    return levels[-1][2]


def _points(levels: Sequence[tuple[float, float, int]], length: float) -> tuple[tuple[float, int], ...]:
    largest: dict[int, int] = {}
    for start, seconds, tokens in levels:
        last = min(POINTS - 1, int((start + seconds) / length * POINTS))
        for point in range(min(POINTS - 1, int(start / length * POINTS)), last + 1):
            largest[point] = max(tokens, largest.get(point, 0))
    return tuple((round(point * length / POINTS, 3), tokens) for point, tokens in sorted(largest.items()))


# --- the gain


def _makespan(without: Result, run: Result) -> float:
    return round(without.outcome.makespan_s / max(run.outcome.makespan_s, 1e-9), 3)


def _program(without: Result, run: Result) -> float:
    return round(_mean_program(without.outcome) / max(_mean_program(run.outcome), 1e-9), 3)


def _mean_program(outcome: Outcome) -> float:
    times = [program.ended - program.started for program in outcome.programs.values()]
    return sum(times) / max(1, len(times))
