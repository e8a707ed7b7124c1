"""The worker on a real Docker engine: whose things go."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.docker_engine import IMAGE, Engine
from tests.server.reclaim.conftest import Tasks
from thunder_server.reclaim.worker import Worker

pytestmark = [pytest.mark.docker, pytest.mark.slow]


async def test_what_was_there_before_stays(engine: Engine, worker: Worker, task: Tasks) -> None:
    old = engine.container(name=engine.name("web"))
    volume, network = engine.volume("old"), engine.network("old")
    image = engine.image("old", old)
    task.program_opens()
    # An old volume looks new in the engine's own words once somebody has written to it.
    binds = engine.api.create_host_config(binds=[f"{volume}:/data"])
    engine.api.wait(engine.container("touch", "/data/x", host_config=binds))
    for kind, ref in (
        ("container", engine.name("web")), ("volume", volume), ("network", network), ("image", image),
        ("image", IMAGE),
    ):  # fmt: skip
        result = await worker.run(task("reclaim", kind, ref))
        assert result["end"] == "spared", result
        assert "was there before" in (result["error"] or "")
        assert engine.exists(kind, ref)


async def test_what_the_program_made_goes(engine: Engine, worker: Worker, task: Tasks) -> None:
    task.program_opens()
    volume, network = engine.volume("new"), engine.network("new")
    config = engine.api.create_host_config(binds=[f"{volume}:/data"], network_mode=engine.name("new"))
    container = engine.container(host_config=config)
    image = engine.image("new", container)
    made = [("container", container), ("network", network), ("volume", volume), ("image", image)]
    for kind, ref in made[1:3]:  # in the wrong order: they are still used, by nobody's container
        assert (await worker.run(task("reclaim", kind, ref)))["end"] == "spared"
    for end in ("done", "absent"):
        for kind, ref in made:
            assert (await worker.run(task("reclaim", kind, ref)))["end"] == end, (kind, end)


async def test_images_are_shared(engine: Engine, worker: Worker, task: Tasks) -> None:
    task.program_opens()
    first = engine.image("shared", engine.container())
    second = f"{engine.name('other')}:1"
    engine.api.tag(first, engine.name("other"), "1")
    user = engine.api.create_container(second, ["sleep", "1000"], labels={"thunder.program": "p2"})["Id"]
    assert (await worker.run(task("reclaim", "image", first)))["end"] == "done"
    result = await worker.run(task("reclaim", "image", second))
    assert (result["end"], "of program p2" in (result["error"] or "")) == ("spared", True)
    assert (await worker.run(task("reclaim", "container", user)))["end"] == "spared"  # it is p2's
    assert (await worker.run(task("reclaim", "container", user, program_id="p2")))["end"] == "done"
    assert (await worker.run(task("reclaim", "image", second)))["end"] == "done"
    assert not engine.exists("image", second)


async def test_a_label_that_a_container_has_from_its_image(
    engine: Engine, worker: Worker, task: Tasks
) -> None:
    """Committing a program's container hands its label on to whoever runs the image."""
    sandbox = engine.container(labels={"thunder.program": engine.mark})
    image = engine.image("committed", sandbox)
    theirs = engine.api.create_container(image, ["sleep", "1000"])["Id"]
    task.program_opens()
    try:
        result = await worker.run(task("reclaim", "container", theirs, program_id=engine.mark))
        assert result["end"] == "spared", result
        survey = await worker.run(task("survey"))
        found = [each["ref"] for each in survey["objects"] if each["program_id"] == engine.mark]
        assert found == [sandbox]
    finally:
        engine.api.remove_container(theirs)


async def test_a_container_that_removes_itself(engine: Engine, worker: Worker, task: Tasks) -> None:
    config = engine.api.create_host_config(auto_remove=True)
    refs = [engine.container(host_config=config) for _ in range(4)]
    results = await asyncio.gather(
        *(worker.run(task("reclaim", "container", ref)) for ref in refs for _ in range(2))
    )
    assert {result["end"] for result in results} <= {"done", "absent"}, results
    assert not any(engine.exists("container", ref) for ref in refs)


async def test_what_carries_a_label_is_found(engine: Engine, worker: Worker, task: Tasks) -> None:
    label = {"thunder.program": engine.mark}
    made = {
        ("container", engine.container(labels=dict(label))),
        ("network", engine.network("n", labels=label)),
        ("volume", engine.volume("v", labels=label)),
    }
    engine.container()
    survey = await worker.run(task("survey"))
    found = [each for each in survey["objects"] if each["program_id"] == engine.mark]
    assert {(each["kind"], each["ref"]) for each in found} == made
    # Never earlier than it was, or it would count as an earlier generation's.
    assert all(task.opened <= each["created_at"] < task.opened + 60 for each in found)


async def test_what_a_name_stands_for(engine: Engine, worker: Worker, task: Tasks) -> None:
    old = engine.container(name=engine.name("web"))
    task.program_opens()
    seen = await worker.run(task("observe", "container", engine.name("web")))
    assert (seen["end"], seen["pin"], seen["brought"]) == ("done", old, False)
    seen = await worker.run(task("observe", "image", "nobody/has:this"))
    assert (seen["end"], seen["brought"]) == ("absent", True)
    engine.api.remove_container(old, force=True)
    new = engine.container(name=engine.name("web"))
    gone = await worker.run(task("reclaim", "container", engine.name("web"), pin=old))
    assert gone["end"] == "absent"
    assert engine.exists("container", new)


async def test_how_much_disk_it_takes(engine: Engine, worker: Worker, task: Tasks) -> None:
    volume = engine.volume("v")
    config = engine.api.create_host_config(binds=[f"{volume}:/data"])
    write = "dd if=/dev/zero of=/x bs=1M count=3; dd if=/dev/zero of=/data/x bs=1M count=2"
    container = engine.container("sh", "-c", write, host_config=config)
    engine.api.wait(container)

    async def size(kind: str, ref: str) -> int | None:
        return (await worker.run(task("measure", kind, ref)))["bytes"]

    assert await size("container", container) == pytest.approx(3 << 20, rel=0.1)
    assert await size("volume", volume) == pytest.approx(2 << 20, rel=0.1)
    assert (await size("image", IMAGE) or 0) > 1 << 20
    assert await size("network", "bridge") is None


async def test_without_an_engine_there_is_nothing_to_find(worker: Worker, task: Tasks) -> None:
    from thunder_server.reclaim.worker import make_worker

    nowhere = make_worker(docker_host="unix:///nowhere/docker.sock")
    assert nowhere.hosts == (socket.gethostname(), "unix:///nowhere/docker.sock")
    assert (await nowhere.run(task("survey")))["end"] == "absent"
