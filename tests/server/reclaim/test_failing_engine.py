"""The worker with an engine that fails: bounded time, plain words, and nothing else held up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_docker import FakeDocker, Handler, answers, babbles, dies, hangs
from tests.server.reclaim.conftest import Tasks
from thunder_sdk.wire import Task
from thunder_server.reclaim.worker import AT_ONCE, Worker, make_worker


@pytest.fixture
def docker() -> Iterator[FakeDocker]:
    with FakeDocker() as docker:
        yield docker


@pytest.fixture
async def worker(docker: FakeDocker) -> Any:
    worker = make_worker(docker_host=docker.url, names=["box"])
    yield worker
    docker.released.set()
    await worker.close()


def preparation(task: Tasks, **more: Any) -> Task:
    environment = {"kind": "docker", "image": "image:1", "command": ["sleep", "1000"]}
    return task("prepare", name="thunder-1", environment=environment, **more)


async def test_it_serves_the_names_it_was_given(worker: Worker, docker: FakeDocker) -> None:
    assert worker.hosts == ("box", docker.url)


@pytest.mark.parametrize(
    "request_", ["GET /images/.*", "POST /containers/create", "POST /containers/.*/start"]
)
@pytest.mark.parametrize(
    ("fault", "words", "retryable"),
    [
        (answers(500, "no space left on device"), "no space left on device", True),
        (answers(400, "invalid mount"), "invalid mount", False),
        (dies, "no use of the engine", True),
        (hangs, "1 s", True),
    ],
)
async def test_an_engine_that_goes_away_while_an_environment_is_prepared(
    worker: Worker, docker: FakeDocker, task: Tasks, request_: str, fault: Any, words: str, retryable: bool
) -> None:
    docker.add("images", "image:1")
    docker.fail(request_, fault)
    result = await worker.run(preparation(task, timeout_s=1.0 if fault is hangs else 30.0))
    assert result["end"] == "failed", result
    assert words in (result["error"] or "")
    assert result["retryable"] is retryable or fault is hangs
    assert docker.objects["containers"] == {}
    docker.faults.clear()
    assert (await worker.run(preparation(task)))["end"] == "done"


async def test_an_engine_that_hangs_holds_up_nothing_else(
    worker: Worker, docker: FakeDocker, task: Tasks
) -> None:
    """Its removals all hang: preparing and looking go on, and so does the loop."""
    refs = [docker.add("containers", f"c{index}") for index in range(2 * AT_ONCE)]
    docker.add("images", "image:1")
    docker.fail("DELETE /containers/.*", hangs, times=2 * AT_ONCE)
    removals = [asyncio.create_task(worker.run(task("reclaim", "container", ref))) for ref in refs]
    async with asyncio.timeout(60):
        while sum(request.startswith("DELETE") for request in docker.seen) < AT_ONCE:
            await asyncio.sleep(0.01)
        assert (await worker.run(preparation(task)))["end"] == "done"
        assert (await worker.run(task("survey")))["end"] == "done"
        assert (await worker.run(task("measure", "container", refs[0])))["end"] == "done"
        assert not any(removal.done() for removal in removals)
        docker.released.set()
        await asyncio.gather(*removals)
    assert sum(request.startswith("DELETE") for request in docker.seen) == 2 * AT_ONCE


async def test_an_engine_that_trickles_is_not_waited_for_for_ever(
    worker: Worker, docker: FakeDocker, task: Tasks
) -> None:
    """Every byte comes in time, so that no time-out of the network ends it."""

    def trickles(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not docker.released.wait(0.02):
            handler.wfile.write(b" ")

    docker.fail("GET /containers/.*", trickles)
    started = time.monotonic()
    result = await worker.run(task("reclaim", "container", "c", timeout_s=3.0))
    assert "not done within" in (result["error"] or "")
    assert result["retryable"]
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("fault", [babbles, answers(500, "starting"), dies])
async def test_a_survey_of_an_engine_that_fails(
    worker: Worker, docker: FakeDocker, task: Tasks, fault: Any
) -> None:
    docker.fail("GET /containers/json", fault)
    assert (await worker.run(task("survey")))["end"] == "failed"


async def test_a_bug_is_told_and_ends_nothing(
    worker: Worker, docker: FakeDocker, task: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    docker.fail("GET /containers/.*", lambda handler: (200, {"unlike": "a container"}))
    result = await worker.run(task("reclaim", "container", "c"))
    assert (result["end"], result["retryable"]) == ("failed", False)
    assert "KeyError" in (result["error"] or "")
    assert "nobody thought of" in caplog.text


async def test_what_this_version_does_not_know(worker: Worker, task: Tasks) -> None:
    result = await worker.run(task("teleport", "container", "c"))
    assert (result["end"], result["retryable"]) == ("failed", False)
    assert "'teleport'" in (result["error"] or "")


async def test_a_directory_is_measured_without_an_engine(worker: Worker, task: Tasks, tmp_path: Any) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr")
    result = await worker.run(task("measure", "directory", str(tmp_path)))
    assert 100_000 <= (result["bytes"] or 0) < 200_000
    assert (await worker.run(task("measure", "directory", "/nowhere")))["bytes"] == 0


async def test_a_worker_that_is_cancelled_leaves_its_thread_to_itself(
    worker: Worker, docker: FakeDocker, task: Tasks
) -> None:
    docker.fail("GET /version", hangs)
    under_way = asyncio.create_task(worker.run(task("survey")))
    async with asyncio.timeout(30):
        while not docker.seen:
            await asyncio.sleep(0.01)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
