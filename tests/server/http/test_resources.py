"""What programs hold, over HTTP: the ledger, cleaning up, and what a restart remembers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_reapers import FarAway
from .whole import PROGRAMS, Whole, whole

RESOURCES = "/thunder/v1/resources"
GC = "/thunder/v1/gc"


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own worker has nothing to do with Docker here."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


def declared(ref: object, kind: str = "directory", seq: int = 1, **kw: Any) -> dict[str, Any]:
    event = {"program_id": "p", "seq": seq, "at": 1.0, "type": "resource.declared"}
    return {**event, "kind": kind, "ref": str(ref), **kw}


async def listed(server: Whole, query: str = "") -> list[dict[str, Any]]:
    status, answer = await server.ask("GET", RESOURCES + query)
    assert status == 200
    return answer["resources"]


async def settled(server: Whole, program_id: str = "p") -> list[str]:
    """The states of a program's resources once nothing is under way."""

    def states() -> list[str]:
        program = server.runtime.scheduler.program(program_id)
        assert program is not None
        return [holding.state.value for holding in server.runtime.scheduler.ledger.holdings.of(program)]

    await server.until(lambda: not {"reclaiming", "declared"} & set(states()), 20)
    return states()


def a_directory(root: Path, name: str = "work") -> Path:
    made = root / name
    (made / "below").mkdir(parents=True)
    (made / "below" / "file").write_bytes(b"x" * 10_000)
    return made


async def test_a_programs_directory_goes_with_it(tmp_path: Path) -> None:
    work, kept = a_directory(tmp_path), a_directory(tmp_path, "kept")
    async with whole(resource_root=[str(tmp_path)]) as server:
        await server.report(declared(work), declared(kept, seq=2, keep=True))
        (first, second) = await listed(server, "?disk=1")
        assert first["bytes"] >= 10_000
        assert (first["state"], second["keep"], first["program_id"]) == ("declared", True, "p")
        await server.ask("DELETE", f"{PROGRAMS}/p")
        assert await settled(server) == ["reclaimed", "kept"]
        assert (work.exists(), kept.exists()) == (False, True)
        assert [one["ref"] for one in await listed(server, "?state=kept")] == [str(kept)]
        assert await listed(server, "?program_id=nobody") == []
        (gone, _) = await listed(server, "?disk=1")
        assert gone["bytes"] is None
        assert (await server.ask("GET", RESOURCES + "?state=lost"))[0] == 400


async def test_what_programs_hold_is_counted(tmp_path: Path) -> None:
    async with whole(resource_root=[str(tmp_path)]) as server:
        await server.report(declared(a_directory(tmp_path)), declared(tmp_path / "kept", seq=2, keep=True))
        await server.ask("DELETE", f"{PROGRAMS}/p")
        await settled(server)
        async with server.http.get(server.url + "/metrics") as answer:
            text = await answer.text()
    for line in (
        'thunder_resources{kind="directory",state="reclaimed"} 1.0',
        'thunder_resources{kind="directory",state="kept"} 1.0',
        'thunder_resources{kind="container",state="failed"} 0.0',
        'thunder_resources_ended_total{end="reclaimed"} 1.0',
        "thunder_resources_leaked 0.0",
        'thunder_environments_prepared_total{end="ready"} 0.0',
        'thunder_environment_prepare_seconds_total{wait="not_hidden"} 0.0',
    ):
        assert line in text


async def test_a_directory_outside_the_roots_stays(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", a_directory(tmp_path, "outside")
    inside.mkdir()
    async with whole(resource_root=[str(inside)]) as server:
        await server.report(declared(outside))
        await server.ask("DELETE", f"{PROGRAMS}/p")
        assert await settled(server) == ["spared"]
        assert outside.exists()


async def test_a_programs_process_goes_when_its_client_is_silent() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        async with whole() as server:
            await server.ask("PUT", f"{PROGRAMS}/p", {"lease_s": 0.2})
            await server.report(declared(f"{child.pid}:{started}", "process"))
            assert await settled(server) == ["reclaimed"]
            assert server.runtime.scheduler.program("p").outcome == "lease_expired"
        assert await asyncio.to_thread(child.wait, 10) < 0
    finally:
        child.kill()
        child.wait()


# --- cleaning up ---------------------------------------------------------------------------------------


async def test_what_failed_is_shown_and_tried_again() -> None:
    async with whole() as server:
        far = FarAway(server)
        await far.poll()
        await server.report(declared("box", "container", host="far"))
        await server.ask("DELETE", f"{PROGRAMS}/p")
        await far.done(await far.task("reclaim"), end="failed", error="the disk is full", retryable=False)
        await far.done(await far.task("survey"), end="absent")  # that of the program's end
        cleaning = asyncio.create_task(server.ask("POST", GC, {"dry_run": True}))
        await far.done(await far.task("survey"), objects=[])
        _, answer = await cleaning
        assert answer["items"] == [
            {
                "kind": "container",
                "ref": "box",
                "program_id": "p",
                "host": "far",
                "why": "failed: the disk is full",
            }
        ]
        assert (await listed(server))[0]["state"] == "failed", "it was only asked"
        cleaning = asyncio.create_task(server.ask("POST", GC))
        await far.done(await far.task("survey"), objects=[])
        assert (await cleaning)[1]["items"] == answer["items"]
        await far.done(await far.task("reclaim"))
        assert (await listed(server))[0]["state"] == "reclaimed"


def found(ref: str, program_id: str, now: float, age: float = 100.0) -> dict[str, Any]:
    return {"kind": "container", "ref": ref, "name": ref, "program_id": program_id, "created_at": now - age}


async def test_orphans_are_told_with_why_and_reclaimed() -> None:
    async with whole(auto_lease=0.05) as server:
        far = FarAway(server)
        await far.poll()
        await server.ask("PUT", f"{PROGRAMS}/over", {"lease_s": 50})
        await server.ask("DELETE", f"{PROGRAMS}/over")
        for _ in range(2):
            await server.ask("PUT", f"{PROGRAMS}/again", {"lease_s": 50})
            await server.ask("DELETE", f"{PROGRAMS}/again")
        await server.ask("PUT", f"{PROGRAMS}/again", {"lease_s": 50})
        await server.ask("PUT", f"{PROGRAMS}/lives", {"lease_s": 50})
        await server.report(declared("held", "container", host="far") | {"program_id": "lives"})

        await far.done(await far.task("survey"), end="absent")  # that of the programs' ends

        async def gc(**body: Any) -> dict[str, Any]:
            cleaning = asyncio.create_task(server.ask("POST", GC, body))
            survey = await far.task("survey")
            now = survey["now"]
            objects = [found(name, name, now) for name in ("over", "again", "stranger")]
            objects += [found("held", "over", now), found("young", "other-stranger", now, age=-0.5)]
            objects += [found("mine", "lives", now, age=-0.1)]
            await far.done(survey, objects=objects)
            return (await cleaning)[1]

        dry = await gc(dry_run=True)
        assert {item["ref"]: item["why"].split(",")[0] for item in dry["items"]} == {
            "over": "its program is over: it was closed",
            "again": "it is from before generation 3 of its program",
            "stranger": "its program is unknown",
        }
        assert dry["errors"] == []
        assert not any(
            one["ref"] in ("over", "stranger") for one in await listed(server, "?state=reclaiming")
        )
        await gc()
        for name in ("again", "over", "stranger"):
            task = await far.task("reclaim")
            assert task["ref"] in ("again", "over", "stranger"), name
            await far.done(task)
        assert await listed(server, "?state=reclaiming") == []


async def test_a_host_that_cannot_be_looked_at_is_said() -> None:
    async with whole() as server:
        far = FarAway(server)
        await far.poll()
        cleaning = asyncio.create_task(server.ask("POST", GC))
        await far.done(await far.task("survey"), end="failed", error="the engine hangs")
        _, answer = await cleaning
        assert answer == {
            "dry_run": False,
            "items": [],
            "errors": [{"host": "far", "error": "the engine hangs"}],
        }


# --- restarts ------------------------------------------------------------------------------------------


async def test_what_was_declared_survives_a_restart(tmp_path: Path) -> None:
    work, state = a_directory(tmp_path), tmp_path / "state" / "journal.jsonl"
    async with whole(resource_root=[str(tmp_path)], state=state) as server:
        await server.ask("PUT", f"{PROGRAMS}/p", {"lease_s": 0.5, "name": "n"})
        await server.report(declared(work))
    assert work.exists(), "the program may live on"
    async with whole(resource_root=[str(tmp_path)], state=state) as server:
        program = await server.program("p")
        assert (program["name"], program["generation"]) == ("n", 1)
        assert await settled(server) == ["reclaimed"]
    assert not work.exists()
    async with whole(resource_root=[str(tmp_path)], state=state) as server:
        assert (await server.ask("GET", f"{PROGRAMS}/p"))[0] == 404, "nothing is left to remember"


async def test_a_state_that_cannot_be_kept_is_refused_if_asked_for(tmp_path: Path) -> None:
    from thunder_server.journal import JournalError
    from thunder_server.service import serving
    from thunder_server.settings import Settings

    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError):
        async with serving(Settings(port=0, state=tmp_path / "file" / "x")):
            pass


async def test_a_default_state_that_cannot_be_kept_is_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", os.fspath(tmp_path / "file"))
    async with whole(port=free_port):
        assert "choose another place with --state" in caplog.text
    monkeypatch.setenv("XDG_STATE_HOME", os.fspath(tmp_path))
    async with whole(port=free_port):
        assert (tmp_path / "thunder" / f"serve-{free_port}.jsonl").exists()


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])
