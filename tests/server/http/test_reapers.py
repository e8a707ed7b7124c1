"""Reapers over HTTP: work by long poll, results, and environments on other hosts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .fake_engine import FakeEngine
from .whole import PROGRAMS, Whole, whole

WORK = "/thunder/v1/reaper/work"
RESULTS = "/thunder/v1/reaper/results"
REAPER = "f" * 32


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own worker has nothing to do with Docker here."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


class FarAway:
    """A reaper on host ``far`` that the test plays."""

    def __init__(self, server: Whole) -> None:
        self.server = server
        self.tasks: list[dict[str, Any]] = []

    async def poll(self, wait_s: float = 0.0, *busy: str, most: int = 8) -> dict[str, Any]:
        body = {"reaper": REAPER, "hosts": ["far"], "busy": list(busy), "wait_s": wait_s, "max": most}
        status, answer = await self.server.ask("POST", WORK, body)
        assert status == 200
        return answer

    async def task(self, do: str) -> dict[str, Any]:
        """The next task of this kind; others wait until somebody wants them."""
        async with asyncio.timeout(20):
            while not (wanted := [task for task in self.tasks if task["do"] == do]):
                self.tasks += (await self.poll(5.0))["tasks"]
        self.tasks.remove(wanted[0])
        return wanted[0]

    async def done(self, task: dict[str, Any], **result: Any) -> dict[str, Any]:
        result = {"task": task["task"], "end": "done", **result}
        status, answer = await self.server.ask("POST", RESULTS, {"reaper": REAPER, "results": [result]})
        assert status == 200
        return answer


def declared(ref: str, seq: int = 1, kind: str = "container") -> dict[str, Any]:
    event = {"program_id": "p", "seq": seq, "at": 1.0, "type": "resource.declared"}
    return {**event, "kind": kind, "ref": ref, "host": "far"}


async def test_a_reaper_gets_work_when_there_is_some_and_tells_how_it_went() -> None:
    async with whole() as server:
        far = FarAway(server)
        assert (await far.poll())["tasks"] == []
        await server.report(declared("box"))
        observe = await far.task("observe")
        assert (observe["kind"], observe["ref"], observe["host"]) == ("container", "box", "far")
        assert await far.done(observe, pin="0" * 64, brought=True) == {"unknown": []}
        waiting = asyncio.create_task(far.poll(20.0))
        await server.ask("DELETE", f"{PROGRAMS}/p")
        (task,) = (await waiting)["tasks"]
        assert (task["do"], task["ref"], task["pin"], task["brought"]) == ("reclaim", "box", "0" * 64, True)
        (claim,) = task["claims"]
        assert claim["opened_at"] <= claim["ended_at"] <= task["now"]
        assert await far.done(task) == {"unknown": []}
        assert (await server.program("p"))["resources"][0]["state"] == "reclaimed"
        assert await far.done(task) == {"unknown": [task["task"]]}


async def test_what_cannot_be_removed_is_retried_and_shown_with_its_reason() -> None:
    async with whole() as server:
        far = FarAway(server)
        await far.poll()
        await server.report(declared("box"))
        await server.ask("DELETE", f"{PROGRAMS}/p")
        await far.done(await far.task("reclaim"), end="failed", error="busy", retryable=True)
        again = await far.task("reclaim")
        assert again["attempt"] == 2
        await far.done(again, end="spared", error="it is older than its program")
        _, listed = await server.ask("GET", "/thunder/v1/resources?program_id=p")
        (one,) = listed["resources"]
        assert (one["state"], one["reason"], one["attempts"]) == ("spared", "it is older than its program", 2)
        assert "far" in listed["hosts"]


async def test_an_environment_on_another_host() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        far = FarAway(server)
        await far.poll()
        await server.ask(
            "PUT", f"{PROGRAMS}/p", {"environment": {"image": "i", "setup": ["x"], "host": "far"}}
        )
        path = f"{PROGRAMS}/p/environment"
        waiting = asyncio.create_task(server.ask("GET", path + "?wait_s=20"))
        prepare = await far.task("prepare")
        assert prepare["environment"] == {"kind": "docker", "image": "i", "setup": ["x"]}
        _, now = await server.ask("GET", path)
        assert (now["state"], now["container_id"]) == ("preparing", None)
        await far.done(prepare, container_id="c1", seconds=0.5)
        _, then = await waiting
        assert (then["state"], then["container_id"], then["generation"]) == ("ready", "c1", 1)
        assert (await server.ask("GET", path + "?wait_s=20"))[1]["state"] == "ready"
        await server.ask("DELETE", f"{PROGRAMS}/p")
        removal = await far.task("reclaim")
        assert (removal["kind"], removal["ref"]) == ("environment", prepare["name"])
        await far.done(removal)
        assert [one["state"] for one in (await server.program("p"))["resources"]] == ["reclaimed"]


async def test_a_preparation_nobody_wants_any_more_is_abandoned() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        far = FarAway(server)
        await far.poll()
        await server.ask("PUT", f"{PROGRAMS}/p", {"environment": {"image": "i", "host": "far"}})
        prepare = await far.task("prepare")
        waiting = asyncio.create_task(server.ask("GET", f"{PROGRAMS}/p/environment?wait_s=20"))
        other = asyncio.create_task(server.ask("GET", f"{PROGRAMS}/p/environment?wait_s=20"))
        polling = asyncio.create_task(far.poll(20.0, prepare["task"]))
        await server.ask("DELETE", f"{PROGRAMS}/p?outcome=dropped")
        assert (await polling)["abandon"] == [prepare["task"]]
        assert (await waiting)[1]["state"] == (await other)[1]["state"] == "gone"
        await far.done(prepare, end="failed", error="abandoned", retryable=False)
        assert (await far.task("reclaim"))["ref"] == prepare["name"]


async def test_environments_that_are_not_to_be_had() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        far = FarAway(server)
        await far.poll()
        assert (await server.ask("GET", f"{PROGRAMS}/nobody/environment"))[0] == 404
        await server.ask("PUT", f"{PROGRAMS}/bare")
        _, bare = await server.ask("GET", f"{PROGRAMS}/bare/environment?wait_s=20")
        assert bare["state"] is None
        await server.ask("PUT", f"{PROGRAMS}/p", {"environment": {"image": "i", "host": "far"}})
        await far.done(await far.task("prepare"), end="failed", error="no such image: i", retryable=False)
        _, failed = await server.ask("GET", f"{PROGRAMS}/p/environment?wait_s=20")
        assert (failed["state"], failed["reason"]) == ("failed", "no such image: i")
        await server.ask("PUT", f"{PROGRAMS}/q", {"environment": {"image": "i", "host": "far"}})
        _, early = await server.ask("GET", f"{PROGRAMS}/q/environment?wait_s=0.01")
        assert early["state"] in ("waiting", "preparing")
        for bad in ("-1", "61", "soon"):
            assert (await server.ask("GET", f"{PROGRAMS}/p/environment?wait_s={bad}"))[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (WORK, {"reaper": REAPER}),
        (WORK, {"reaper": REAPER, "hosts": []}),
        (WORK, {"reaper": "a b", "hosts": ["far"]}),
        (WORK, {"reaper": REAPER, "hosts": ["far"], "wait_s": 61}),
        (WORK, {"reaper": REAPER, "hosts": ["far"], "max": 65}),
        (RESULTS, {"reaper": REAPER, "results": [{"task": "t"}]}),
        (RESULTS, {"reaper": REAPER, "results": [{"task": "t", "end": "perhaps"}]}),
        (
            RESULTS,
            {"reaper": REAPER, "results": [{"task": "t", "end": "done", "objects": [{"kind": "image"}]}]},
        ),
    ],
)
async def test_bodies_that_do_not_fit(path: str, body: dict[str, Any]) -> None:
    async with whole() as server:
        assert (await server.ask("POST", path, body))[0] == 400


async def test_reapers_show_a_key() -> None:
    async with whole(api_key=("k",)) as server:
        for path in (WORK, RESULTS, "/thunder/v1/gc"):
            assert (await server.ask("POST", path, {}))[0] == 401
        for path in ("/thunder/v1/resources", f"{PROGRAMS}/p/environment"):
            assert (await server.ask("GET", path))[0] == 401
