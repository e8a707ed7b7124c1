"""Simulated engines that publish their caches: the core knows to the block what they hold."""

from __future__ import annotations

from thunder_server.core import SchedulerConfig, make_policy
from thunder_server.core.router import RouterSettings
from thunder_server.simulation.generated import rl_group
from thunder_server.simulation.simulator import Machines, Simulator, Start
from thunder_server.simulation.time_model import PRESETS

from .sessions import growing


def simulator(starts: list[Start], kv_tokens: int, replicas: int = 1, **options) -> Simulator:
    machines = Machines(preset=PRESETS["h100-qwen30b"], replicas=replicas, kv_tokens=kv_tokens)
    return Simulator(starts, machines, policy=make_policy("phase"), kv_events=True, **options)


def held(simulator: Simulator) -> dict[str, set[int]]:
    """The blocks that can be found in each engine."""
    return {
        name: {key for run in replica.engine.cache._runs.values() for key in run.hashes[run.start : run.end]}
        for name, replica in simulator._replicas.items()
    }


def test_after_a_run_that_thrashes_the_core_knows_every_block():
    run = simulator(rl_group(24, 0, 0.1), kv_tokens=20_000, replicas=2, check=True)
    outcome = run.run()
    assert outcome.pauses
    known = {name: backend.cache.blocks for name, backend in run._scheduler.backends.items()}
    assert known == held(run)


def test_of_a_program_by_itself_every_hit_is_predicted():
    run = simulator([Start(session=growing("a", 6, first=2000, step=700))], kv_tokens=400_000)
    outcome = run.run()
    (forecast,) = outcome.forecasts
    assert forecast.calls == 6
    assert forecast.off == 0
    assert forecast.cached > 0


def test_routing_can_be_left_out():
    starts = rl_group(24, 0, 0.1)
    moves = {}
    for shadow in (False, True):
        config = SchedulerConfig(router=RouterSettings(shadow=shadow))
        run = simulator(starts, kv_tokens=60_000, replicas=2, config=config)
        run.run()
        moves[shadow] = run._scheduler.router.compared
    assert moves[True] > 0 == moves[False]
