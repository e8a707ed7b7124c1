"""What programs hold is known again after a restart, however the server ended."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.server.core.harness import Harness, of_type
from thunder_server.core.decisions import Reclaim
from thunder_server.core.events import EnvironmentWanted, Outcome
from thunder_server.core.resource_events import (
    EnvironmentPrepared,
    HostServed,
    ReclaimEnd,
    ReclaimEnded,
    ResourceObserved,
)
from thunder_server.journal import Journal, JournalError, default_path

HOST = "box"


class Life(Harness):
    """One run of a server with a journal, on a clock of its own that begins at 0 at ``born`` Unix seconds."""

    def __init__(self, path: Path, born: float = 1000.0) -> None:
        super().__init__("passthrough")
        self.handle(HostServed(at=0.0, host=HOST))
        self.journal = Journal(path, self.scheduler, lambda at: at + born)
        self.recovered = [
            decision for event in self.journal.recovered(0.0) for decision in self.handle(event)
        ]
        self.watching = True

    def handle(self, event):
        said = super().handle(event)
        if getattr(self, "watching", False):
            self.journal.observe(event, said)
        return said

    def hold(self, program: str, ref: str, kind: str = "container", **kw):
        return self.declare(program, kind, ref, host=HOST, **kw)

    def gone(self, ref: str, kind: str = "container"):
        return self.handle(
            ReclaimEnded(at=self.now, kind=kind, ref=ref, host=HOST, end=ReclaimEnd.GONE, reason="")
        )

    def resources(self, program: str) -> list[tuple[str, str]]:
        return [(one["ref"], one["state"]) for one in self.view(program)["resources"]]

    def dies(self) -> None:
        self.watching = False
        self.journal.close()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Generator[Path]:
    return tmp_path / "deep" / "state.jsonl"


def test_programs_that_live_on_keep_what_they_hold_and_others_lose_it(path: Path) -> None:
    first = Life(path)
    first.put("lives", name="n", group="g", lease_s=20.0, priority=3)
    first.put("dies", lease_s=20.0)
    first.hold("lives", "a")
    first.hold("dies", "b")
    first.hold("dies", "image", "image")
    first.handle(ResourceObserved(at=0.0, kind="container", ref="b", host=HOST, pin="f" * 64, brought=True))
    first.handle(ResourceObserved(at=0.0, kind="container", ref="x", host=HOST, pin="f" * 64, brought=True))
    first.dies()

    second = Life(path, born=1100.0)
    assert second.recovered, "what is known again is told"
    view = second.view("lives")
    assert (view["name"], view["group"], view["priority"], view["lease_s"]) == ("n", "g", 3, 20.0)
    assert view["opened_at"] == -100.0
    second.after(15.0).heartbeat("lives")
    (reclaim,) = of_type(second.run_to(21.0), Reclaim)
    assert (reclaim.ref, reclaim.pin, reclaim.brought) == ("b", "f" * 64, True)
    assert reclaim.claims[0].opened_at == -100.0
    assert second.resources("lives") == [("a", "declared")]
    second.gone("b")
    second.dies()

    third = Life(path, born=1200.0)
    assert [one.ref for one in of_type(third.recovered, Reclaim)] == ["image"], "b is gone"
    third.dies()


def test_what_had_ended_is_reclaimed_and_what_was_kept_stays(path: Path) -> None:
    first = Life(path)
    first.put("p")
    for ref in ("a", "back"):
        first.hold("p", ref)
    first.hold("p", "kept", keep=True)
    first.release("p", "container", "back", host=HOST)
    first.after(5.0).close("p", Outcome.ERROR)
    first.dies()

    second = Life(path, born=1010.0)
    (reclaim,) = of_type(second.recovered, Reclaim)
    assert (reclaim.ref, reclaim.claims[0].opened_at, reclaim.claims[0].ended_at) == ("a", -10.0, -5.0)
    assert second.view("p")["outcome"] == "error"
    assert ("kept", "kept") in second.resources("p")
    second.gone("a")
    second.put("p")
    assert second.view("p")["generation"] == 2
    second.hold("p", "c")
    second.dies()

    third = Life(path, born=1020.0)
    assert of_type(third.recovered, Reclaim) == []
    assert (third.view("p")["generation"], third.resources("p")) == (2, [("c", "declared")])
    assert {line["ref"] for line in third.lines() if line["do"] == "hold"} == {"c", "kept"}
    third.dies()


def test_environments_are_known_again(path: Path) -> None:
    first = Life(path)
    wanted = EnvironmentWanted(image="i", host=HOST, spec={"image": "i"})
    first.backend("a", None)
    for program in ("ready", "unready", "over"):
        first.put(program, environment=wanted)
        first.run_to(first.now + 1.0)
    for program in ("ready", "over"):
        first.handle(
            EnvironmentPrepared(at=first.now, program_id=program, generation=1, container_id="c", seconds=1.0)
        )
    first.close("over", Outcome.SUCCESS)
    first.dies()

    second = Life(path)
    ready = second.scheduler.program("ready")
    assert ready is not None
    assert ready.environment is not None
    assert (ready.environment.state, ready.environment.container_id) == ("ready", "c")
    unready = second.scheduler.program("unready")
    assert unready is not None
    assert unready.environment is not None
    assert unready.environment.state == "waiting"
    over = second.scheduler.program("over")
    assert over is not None
    assert over.environment is None
    assert [one.kind for one in of_type(second.recovered, Reclaim)] == ["environment"]
    second.close("unready", Outcome.SUCCESS)
    second.dies()


def test_a_line_that_broke_off_costs_nothing_else(path: Path) -> None:
    first = Life(path)
    first.hold("p", "a")
    first.dies()
    with path.open("a") as file:
        file.write(
            '[1]\n{"do": "hold"}\n{"id": "q", "gen": 1, "do": "hold"}\n{"id": "p", "gen": 1, "do": "ho'
        )
    second = Life(path)
    assert second.resources("p") == [("a", "declared")]
    second.dies()


def test_processes_do_not_outlive_the_machine(path: Path) -> None:
    first = Life(path)
    first.hold("p", "1:2", "process")
    first.hold("p", "a")
    first.dies()
    text = path.read_text()
    path.write_text(text.replace(json.loads(text.splitlines()[0])["boot"], "another-boot"))
    second = Life(path)
    assert second.resources("p") == [("a", "declared")]
    second.dies()


def test_the_file_does_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunder_server.journal.SLACK", 20)
    life = Life(path)
    life.hold("p", "held")
    for number in range(50):
        life.hold("p", f"c{number}")
        life.release("p", "container", f"c{number}", host=HOST)
    assert len(life.lines()) < 50
    life.dies()
    again = Life(path)
    assert again.resources("p") == [("held", "declared")]
    again.dies()


def test_of_two_servers_one_has_the_file(path: Path) -> None:
    first = Life(path)
    with pytest.raises(JournalError, match="in use by another server; give this one its own --state"):
        Life(path)
    first.dies()
    Life(path).dies()


def test_a_place_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="choose another place with --state"):
        Life(tmp_path / "file" / "state.jsonl")
    in_a_directory = Life(tmp_path)
    assert in_a_directory.journal.path == tmp_path / "thunder.jsonl"
    in_a_directory.dies()


def test_a_full_disk_stops_nobody(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(path)
    life.journal._file.close()
    full = life.journal._file = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails as well
    for ref in ("a", "b"):
        life.hold("p", ref)
    with pytest.raises(OSError, match="No space"):
        full.close()
    assert len([1 for record in caplog.records if "until it can be written" in record.message]) == 1
    life.journal._file = path.open("a")
    life.hold("p", "c")
    life.dies()


def test_where_it_is_if_nobody_says() -> None:
    assert default_path({"XDG_STATE_HOME": "/x"}, 8300) == Path("/x/thunder/serve-8300.jsonl")
    assert default_path({"HOME": "/home/me"}, 1) == Path("/home/me/.local/state/thunder/serve-1.jsonl")
    assert default_path({"HOME": "/home/me"}, 0) is None
    assert default_path({}, 8300) is None
