"""Settings for this traffic: what each of them changes in a replay, and which have earned their place.

Policies are tuned one by one. A policy's knobs are turned in the order of `KNOBS`, each from where those
before it were left, and stay turned only if that gains more than chance: at least `EARNS` in the seed that is
tuned on *and* in others that are not. What cannot pass that is a property of one replay, not of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from thunder_server.core import (
    CapSettings,
    PaperSettings,
    PhaseSettings,
    Policy,
    SchedulerConfig,
    make_policy,
)
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Standstill
from thunder_server.simulation.study import Result, Study

EARNS = 1.01
"""How many times as fast a setting has to be."""

Value = float | tuple[float, ...]
Setup = Mapping[str, Any]
"""Settings as ``thunder serve --config`` reads them, by their TOML keys; always with ``policy``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Settings that are turned together. ``positions`` are the values to try, one for each of ``keys``."""

    keys: tuple[str, ...]
    about: str
    positions: tuple[tuple[Value, ...], ...]
    policies: frozenset[str]
    signals: frozenset[Signals] = frozenset(Signals)


def _single(key: str, about: str, values: Sequence[Value], *policies: str, **more: Any) -> Knob:
    return Knob(
        keys=(key,),
        about=about,
        positions=tuple((value,) for value in values),
        policies=frozenset(policies),
        **more,
    )


KNOBS = (
    _single("cap", "programs active on a backend", (4, 8, 12, 16, 24), "cap"),
    _single("paper_decay", "how fast acting programs fade from the count", (1, 1.02, 1.1, 1.5), "paper"),
    _single("paper_interval", "Δt, seconds between two looks", (1, 2, 10), "paper"),
    Knob(
        keys=("paper_lambda_max", "paper_lambda_min"),
        about="pause above this share of memory, restore below",
        positions=((0.9, 0.9), (0.95, 0.95), (1.1, 1.0)),
        policies=frozenset({"paper"}),
    ),
    _single("paper_lambda_min", "restore below this share of memory", (0.8, 0.9), "paper"),
    _single(
        "router_weights",
        "what a replica's score is made of: its cache, its room, its pace",
        ((0.8, 0.1, 0.1), (0.2, 0.6, 0.2), (0.2, 0.2, 0.6)),
        "phase",
    ),
    _single("keep_warm", "engines are asked to use what they would drop", (True,), "phase"),
    _single(
        "auto_lease",
        "seconds that a silent program nobody opened keeps its place",
        (30, 60, 120, 300),
        "phase",
        "paper",
        "cap",
        signals=frozenset({Signals.INFERRED}),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setup that was tried. ``gain`` is how many times as fast it was as the policy with what had been
    settled before (of a policy as it comes: as the first policy); ``checked`` is the same in the other seeds,
    ``None`` where the first had settled it.
    """

    policy: str
    setup: dict[str, Any]
    changed: dict[str, Any]
    about: str
    gain: float
    checked: float | None
    kept: bool
    row: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of it: all trials; the best setup of each policy, and its gain over all seeds, against the
    first policy as it comes."""

    trials: tuple[Trial, ...]
    setups: tuple[dict[str, Any], ...]
    gains: tuple[float, ...]

    @property
    def winner(self) -> dict[str, Any]:
        return self.setups[max(range(len(self.setups)), key=self.gains.__getitem__)]

    def to_json(self) -> dict[str, Any]:
        best = [{"setup": setup, "gain": gain} for setup, gain in zip(self.setups, self.gains, strict=True)]
        return {"trials": [asdict(trial) for trial in self.trials], "best": best, "winner": self.winner}


class Tuner:
    """Tries setups in the studies of one piece of traffic, of which the first is tuned on and the others
    check; so there are at least two. ``timed`` says whether the traffic's own times are replayed: then how
    soon programs are through counts, else how soon all are."""

    def __init__(
        self, studies: Sequence[Study], *, timed: bool, telling: Callable[[str], object] = lambda _: None
    ) -> None:
        self._studies = studies
        self._timed = timed
        self._telling = telling
        self._seconds: dict[tuple[int, tuple[tuple[str, Any], ...]], float] = {}
        self._rows: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}

    def tune(self, policies: Sequence[str]) -> Tuned:
        trials: list[Trial] = []
        setups = []
        for policy in policies:
            setup: Setup = start_of(policy)
            trials.append(self._try(start_of(policies[0]), setup, changed={}, about="as it comes"))
            for knob in KNOBS:
                if policy in knob.policies and self._studies[0].signals in knob.signals:
                    tried = list(self._turn(setup, knob))
                    trials += tried
                    setup = next((trial.setup for trial in tried if trial.kept), setup)
            setups.append(dict(setup))
        every = range(len(self._studies))
        gains = [self._gain(start_of(policies[0]), setup, every) for setup in setups]
        return Tuned(trials=tuple(trials), setups=tuple(setups), gains=tuple(gains))

    def _turn(self, setup: Setup, knob: Knob) -> Iterator[Trial]:
        """All positions of a knob; the best one that holds in the other seeds is kept."""
        tried: list[Trial] = []
        for position in knob.positions:
            changed = dict(zip(knob.keys, position, strict=True))
            candidate = {**setup, **changed}
            if candidate == setup or not _makes_sense(candidate):
                continue
            with suppress(Standstill):  # which says enough about a setting
                tried.append(self._try(setup, candidate, changed=changed, about=knob.about))
        best = max(tried, key=lambda trial: trial.gain, default=None)
        for trial in tried:
            if trial is not best or trial.gain < EARNS:
                yield trial
                continue
            checked = 0.0
            with suppress(Standstill):
                checked = self._gain(setup, trial.setup, range(1, len(self._studies)))
            yield replace(trial, checked=checked, kept=checked >= EARNS)

    def _try(self, before: Setup, candidate: Setup, *, changed: dict[str, Any], about: str) -> Trial:
        gain = self._gain(before, candidate, [0])
        return Trial(
            policy=candidate["policy"],
            setup=dict(candidate),
            changed=changed,
            about=about,
            gain=gain,
            checked=None,
            kept=False,
            row=self._rows[_key(candidate)],
        )

    def _gain(self, before: Setup, after: Setup, studies: Sequence[int]) -> float:
        ratios = [self._took(before, number) / max(self._took(after, number), 1e-9) for number in studies]
        return round(fmean(ratios), 4)

    def _took(self, setup: Setup, number: int) -> float:
        key = (number, _key(setup))
        if key not in self._seconds:
            name = ", ".join(f"{name} = {value}" for name, value in setup.items())
            self._telling(f"{name}, seed {self._studies[number].seed}")
            result = replace(self._studies[number], config=config_of(setup)).run(name, policy_of(setup))
            self._seconds[key] = _seconds(result, timed=self._timed)
            if not number:
                self._rows[_key(setup)] = result.row
        return self._seconds[key]


def _seconds(result: Result, *, timed: bool) -> float:
    if not timed:
        return result.outcome.makespan_s
    return fmean(program.ended - program.started for program in result.outcome.programs.values())


def _key(setup: Setup) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(setup.items()))


def start_of(policy: str) -> dict[str, Any]:
    """A policy as it comes."""
    return {"policy": policy} | ({"cap": CapSettings().programs} if policy == "cap" else {})


def _makes_sense(setup: Setup) -> bool:
    try:
        policy_of(setup)
    except ValueError:
        return False
    return True


def policy_of(setup: Setup) -> Policy:
    """The policy of a setup.

    >>> policy_of({"policy": "paper", "paper_decay": 1}).decay
    1
    """
    match setup["policy"]:
        case "cap":
            return make_policy("cap", CapSettings(programs=setup["cap"]))
        case "paper":
            standard = PaperSettings()
            return make_policy(
                "paper",
                PaperSettings(
                    interval_s=setup.get("paper_interval", standard.interval_s),
                    decay=setup.get("paper_decay", standard.decay),
                    lambda_max=setup.get("paper_lambda_max", standard.lambda_max),
                    lambda_min=setup.get("paper_lambda_min", standard.lambda_min),
                ),
            )
        case "phase":
            return make_policy("phase", PhaseSettings(keep_warm=setup.get("keep_warm", False)))
        case name:
            return make_policy(name)


def config_of(setup: Setup) -> SchedulerConfig:
    """What of a setup does not belong to its policy."""
    standard = SchedulerConfig()
    router = standard.router
    match, load, latency = setup.get("router_weights", (router.match, router.load, router.latency))
    return replace(
        standard,
        auto_lease_s=setup.get("auto_lease", standard.auto_lease_s),
        router=replace(router, match=match, load=load, latency=latency),
    )


def fragment(setup: Setup, comments: Mapping[str, str]) -> str:
    """A setup as TOML, for ``thunder serve --config``; ``comments`` by key.

    >>> print(fragment({"policy": "paper", "paper_decay": 1}, {"paper_decay": "1.2 times as fast"}))
    policy = "paper"
    paper_decay = 1  # 1.2 times as fast
    """
    return "\n".join(
        f"{key} = {written(value)}" + (f"  # {comments[key]}" if key in comments else "")
        for key, value in setup.items()
    )


def written(value: object) -> str:
    """A value as TOML.

    >>> written("paper"), written(True), written(0.5), written((0.8, 0.1, 0.1))
    ('"paper"', 'true', '0.5', '[0.8, 0.1, 0.1]')
    """
    match value:
        case str():
            return f'"{value}"'
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(written, value))}]"
        case _:
            return f"{value:g}"
