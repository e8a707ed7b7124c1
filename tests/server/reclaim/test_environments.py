"""The worker on a real Docker engine: sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.docker_engine import IMAGE, Engine
from tests.server.reclaim.conftest import Tasks
from thunder_sdk.wire import Task, TaskResult
from thunder_server.reclaim.worker import Worker

pytestmark = [pytest.mark.docker, pytest.mark.slow]

MakePreparation = Callable[..., Task]


@pytest.fixture
def preparation(engine: Engine, task: Tasks) -> MakePreparation:
    """The task to prepare an environment with such fields."""

    def preparation(timeout_s: float = 30.0, **fields: Any) -> Task:
        spec = {"kind": "docker", "image": IMAGE, "command": ["sleep", "1000"], **fields}
        name = engine.name("thunder")
        return task("prepare", name=name, environment=spec, timeout_s=timeout_s, program_id=engine.mark)

    return preparation


@pytest.fixture(autouse=True)
def _no_sandbox_is_left(engine: Engine) -> Any:
    yield
    for left in engine.of_program(engine.mark):
        engine.api.remove_container(left, force=True)


def failed(result: TaskResult, *words: str) -> None:
    assert result["end"] == "failed", result
    for word in words:
        assert word in (result["error"] or "")
    assert "container_id" not in result


async def test_it_is_as_the_program_wants_it(
    engine: Engine, worker: Worker, preparation: MakePreparation, task: Tasks
) -> None:
    volume = engine.volume("v")
    result = await worker.run(
        preparation(
            setup=["echo $GREETING > hello", "test $(cat hello) = hi && touch /data/ready"],
            env={"GREETING": "hi"},
            workdir="/work",
            mounts=[f"{volume}:/data"],
            network="none",
            limits={"cpus": 0.5, "memory": "64m", "pids": 50, "memory_swap": "128m", "shm_size": "1m"},
        )
    )
    assert result["end"] == "done", result
    assert result["seconds"] > 0
    found = engine.api.inspect_container(result["container_id"])
    assert found["State"]["Running"]
    assert found["Config"]["Labels"]["thunder.program"] == engine.mark
    assert found["Config"]["WorkingDir"] == "/work"
    host = found["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["PidsLimit"]) == (500_000_000, 64 << 20, 50)
    assert host["NetworkMode"] == "none"
    assert [mount["Name"] for mount in found["Mounts"]] == [volume]
    again = await worker.run(preparation())
    assert again["container_id"] != result["container_id"]
    assert engine.of_program(engine.mark) == [again["container_id"]]
    for do in ("hibernate", "hibernate", "wake", "wake"):
        assert (await worker.run(task(do, ref=again["container_id"])))["end"] == "done"
        assert engine.api.inspect_container(again["container_id"])["State"]["Paused"] is (do == "hibernate")
    gone = await worker.run(task("reclaim", "environment", engine.name("thunder"), program_id=engine.mark))
    assert gone["end"] == "done"
    assert (await worker.run(task("hibernate", ref=again["container_id"])))["end"] == "absent"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"setup": ["true", "echo oops >&2; exit 3"]}, ("setup command 2", "ended with 3", "oops")),
        ({"setup": ["false"]}, ("it wrote nothing",)),
        ({"command": ["sh", "-c", "echo bye; exit 4"]}, ("ended with 4", "bye", "a command that stays")),
        ({"command": ["sh", "-c", "exit 4"], "setup": ["true"]}, ("ended with 4",)),
        ({"command": ["no-such-command"]}, ("no-such-command",)),
        ({"image": "thunder-test.invalid/no:1"}, ("thunder-test.invalid/no:1 cannot be pulled",)),
        ({"limits": {"wings": 2}}, ("'wings' is unknown", "cpus, memory")),
        ({"limits": {"cpus": "many"}}, ("cpus cannot be 'many'",)),
        ({"limits": {"memory": "a lot"}}, ("a lot",)),
        ({"limits": {"cpus": 1e300 * 1e10}}, ("cpus cannot be inf",)),
        ({"network": "nobody-made-it"}, ("nobody-made-it",)),
        ({"mounts": ["relative:/x:zz"]}, ("zz",)),
    ],
)
async def test_what_goes_wrong_is_said(
    engine: Engine,
    worker: Worker,
    preparation: MakePreparation,
    fields: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    failed(await worker.run(preparation(**fields)), *words)
    assert engine.of_program(engine.mark) == []


async def test_a_command_that_reads_its_input_stays(worker: Worker, preparation: MakePreparation) -> None:
    result = await worker.run(preparation(command=["sh"]))
    assert result["end"] == "done", result


async def test_somebody_elses_container_of_the_name_stays(
    engine: Engine, worker: Worker, preparation: MakePreparation
) -> None:
    theirs = engine.container(name=engine.name("thunder"))
    failed(await worker.run(preparation()), "not the program's")
    assert engine.exists("container", theirs)


async def test_it_can_be_abandoned(engine: Engine, worker: Worker, preparation: MakePreparation) -> None:
    under_way = asyncio.create_task(worker.run(preparation(setup=["touch /begun", "sleep 1000"])))
    async with asyncio.timeout(30):
        while not engine.of_program(engine.mark):
            await asyncio.sleep(0.02)
        worker.abandon("t")
        failed(await under_way, "abandoned")
    assert engine.of_program(engine.mark) == []
    worker.abandon("t")  # too late: nothing happens


async def test_it_takes_no_longer_than_it_may(
    engine: Engine, worker: Worker, preparation: MakePreparation
) -> None:
    async with asyncio.timeout(30):
        failed(await worker.run(preparation(2.0, setup=["sleep 1000"])), "not ready within 2 s")
    assert engine.of_program(engine.mark) == []


async def test_a_worker_that_stops_leaves_nothing_half_done(
    engine: Engine, worker: Worker, preparation: MakePreparation
) -> None:
    under_way = asyncio.create_task(worker.run(preparation(setup=["sleep 1000"])))
    async with asyncio.timeout(30):
        while not engine.of_program(engine.mark):
            await asyncio.sleep(0.02)
        await worker.close()
        failed(await under_way, "the worker stops")
    assert engine.of_program(engine.mark) == []
