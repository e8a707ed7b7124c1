"""Tuning: which settings earn their place in a replay, and the TOML that they become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.sessions import growing, machines, session, turn
from thunder_server.settings import load_settings
from thunder_server.simulation.replay import Signals
from thunder_server.simulation.simulator import Start
from thunder_server.simulation.study import Study, Workload, _renamed
from thunder_server.simulation.tuning import (
    EARNS,
    KNOBS,
    Tuner,
    _makes_sense,
    config_of,
    fragment,
    policy_of,
    start_of,
)


def studies(signals: Signals = Signals.EXPLICIT, seeds: int = 2) -> list[Study]:
    first = Study(
        workload=Workload(
            name="t",
            starts=tuple(
                Start(session=growing(f"s{n}", 5 + n % 4, step=60, gap=6.0 + n % 5), at=float(n))
                for n in range(10)
            ),
        ),
        machines=machines(2000),
        signals=signals,
        seed=0,
    )
    return [replace(first, seed=seed) for seed in range(seeds)]


def test_every_knob_is_a_setting_that_the_server_takes(tmp_path):
    for knob in KNOBS:
        for policy in knob.policies:
            for position in knob.positions:
                setup = start_of(policy) | dict(zip(knob.keys, position, strict=True))
                if not _makes_sense(setup):
                    continue
                path = tmp_path / "thunder.toml"
                path.write_text(fragment(setup, dict.fromkeys(knob.keys, knob.about)))
                settings = load_settings({"backend": ["http://gpu:8000"]}, {}, str(path))
                assert all(getattr(settings, key) == value for key, value in setup.items())
                assert policy_of(setup).name == policy


def test_what_helps_in_other_seeds_too_is_kept_and_the_best_policy_wins():
    told = []
    tuned = Tuner(studies(), timed=False, telling=told.append).tune(["paper", "cap"])
    assert [setup["policy"] for setup in tuned.setups] == ["paper", "cap"]
    kept = [trial for trial in tuned.trials if trial.kept]
    assert kept
    for trial in kept:
        assert trial.checked is not None
        assert min(trial.gain, trial.checked) >= EARNS
    # The same seed twice: what was gained is gained again.
    assert all(trial.gain == trial.checked for trial in kept)
    assert tuned.winner in tuned.setups
    assert tuned.to_json()["winner"] == tuned.winner
    assert tuned.gains[tuned.setups.index(tuned.winner)] == max(tuned.gains) >= 1.0
    assert told[0].startswith("policy = paper")
    base = next(trial for trial in tuned.trials if trial.policy == "paper")
    assert (base.changed, base.gain, base.about) == ({}, 1.0, "as it comes")


def test_what_stands_still_is_no_setting():
    child = session("c", turn(400), model="c")
    parent = session("p", turn(500), turn(520, shared=500, gap=5.0, children=[child]))
    starts = tuple(Start(session=_renamed(parent, f"p{n}"), at=float(n)) for n in range(3))
    first = replace(studies()[0], workload=Workload(name="t", starts=starts), machines=machines(1600))
    tuned = Tuner([first, replace(first, seed=1)], timed=False).tune(["paper"])
    assert {"paper_decay": 1.1} in [trial.changed for trial in tuned.trials]
    assert {"paper_decay": 1} not in [trial.changed for trial in tuned.trials]


def test_what_helps_in_one_replay_only_is_not_kept():
    tuned_on, *_ = studies()
    # Elsewhere everything fits, so that nothing helps.
    checks = replace(tuned_on, machines=machines(100_000), seed=1)
    tuned = Tuner([tuned_on, checks], timed=False).tune(["paper"])
    assert any(trial.gain >= EARNS and trial.checked == 1.0 for trial in tuned.trials)
    assert not any(trial.kept for trial in tuned.trials)
    assert tuned.setups == ({"policy": "paper"},)


def test_the_lease_matters_where_nobody_says_that_a_program_has_ended():
    explicit = Tuner(studies(), timed=True).tune(["phase"])
    inferred = Tuner(studies(Signals.INFERRED), timed=True).tune(["phase"])
    assert {key for trial in explicit.trials for key in trial.changed} == {"router_weights", "keep_warm"}
    assert {key for trial in inferred.trials for key in trial.changed} == {
        "router_weights",
        "keep_warm",
        "auto_lease",
    }
    assert config_of({"policy": "phase", "auto_lease": 30}).auto_lease_s == 30
    assert config_of({"policy": "phase", "router_weights": (0.8, 0.1, 0.1)}).router.match == 0.8


@pytest.mark.parametrize(
    "setup", [{"policy": "paper", "paper_lambda_max": 0.9}, {"policy": "cap", "cap": 0}, {"policy": "none"}]
)
def test_setups_that_make_no_sense_are_not_tried(setup):
    assert not _makes_sense(setup)
