"""``thunder resources`` and ``thunder gc`` in front of a real server."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ..http.whole import PROGRAMS, Whole, whole
from .harness import Background, thunder

Scene = tuple[Background, Whole]
FAR = {"reaper": "f" * 32, "hosts": ["far"]}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Scene]:
    """A program that holds a directory here and two containers where a reaper, played here, serves."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_bytes(b"x" * 3000)
    background = Background()
    with background.entered(lambda: whole(resource_root=[str(tmp_path)])) as server:
        events = [
            {"program_id": "p", "seq": 1, "at": 1.0, "kind": "directory", "ref": str(work)},
            {"program_id": "p", "seq": 2, "at": 1.0, "kind": "container", "ref": "a" * 64, "host": "far"},
            {"program_id": "p", "seq": 3, "at": 1.0, "kind": "container", "ref": "\x1b[2Jbox", "host": "far"},
        ]
        background.run(server.report(*({**event, "type": "resource.declared"} for event in events)))
        yield background, server
    background.close()


def ask(scene: Scene, path: str, body: Any) -> Any:
    background, server = scene
    status, answer = background.run(server.ask("POST", "/thunder/v1/reaper/" + path, body))
    assert status == 200
    return answer


def run(scene: Scene, *words: str):
    return thunder(*words, THUNDER_BASE_URL=scene[1].url)


def test_what_programs_hold_is_listed(scene: Scene) -> None:
    result = run(scene, "resources")
    assert result.exit_code == 0
    assert "aaaaaaaaaaaa" in result.stdout
    assert "\x1b[2J" not in result.stdout
    listed = json.loads(run(scene, "resources", "p", "--state", "declared", "--json").stdout)
    assert [one["kind"] for one in listed["resources"]] == ["directory", "container", "container"]
    assert run(scene, "resources", "nobody").stdout == "No resources.\n"


def test_disk_is_measured_by_program(scene: Scene) -> None:
    result = run(scene, "resources", "p", "--disk")
    assert "KiB" in result.stdout
    assert json.loads(run(scene, "resources", "--disk", "--json").stdout)["resources"][0]["bytes"] >= 3000


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [(("p/q",), "no program id", 2), (("--state", "lost"), "state: 'lost' is unknown", 1)],
)
def test_mistakes_are_explained(scene: Scene, words: tuple[str, ...], complaint: str, code: int) -> None:
    result = run(scene, "resources", *words)
    assert (result.exit_code, complaint in result.stderr) == (code, True)


def test_cleaning_up_says_what_and_why(scene: Scene) -> None:
    assert run(scene, "gc", "--dry-run").stdout == "Nothing was left behind.\n"
    ask(scene, "work", {**FAR, "wait_s": 0})
    background, server = scene
    background.run(server.ask("DELETE", f"{PROGRAMS}/p"))
    work = ask(scene, "work", {**FAR, "wait_s": 5})
    failed = [
        {"task": task["task"], "end": "failed", "error": "the disk is full", "retryable": False}
        for task in work["tasks"]
    ]
    ask(scene, "results", {"reaper": FAR["reaper"], "results": failed})
    # Nobody plays the reaper any more: the host is named as one that could not be looked at.
    monkey = pytest.MonkeyPatch()
    monkey.setattr("thunder_server.resources.LOOK_S", 0.2)
    try:
        dry, wet = run(scene, "gc", "--dry-run"), run(scene, "gc")
        as_json = run(scene, "gc", "--dry-run", "--json")
    finally:
        monkey.undo()
    assert f"would reclaim container {'a' * 64} on far of p: failed: the disk is full" in dry.stdout
    assert "reclaims container" in wet.stdout
    assert dry.exit_code == wet.exit_code == 1
    assert "far was left out: it does not answer within 0.2 s" in dry.stderr
    assert json.loads(as_json.stdout)["dry_run"] is True
