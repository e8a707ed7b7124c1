"""What programs leave behind goes, and nothing else: real processes, a real server, a real Docker engine."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docker_engine import Engine
from tests.e2e.holding import agent
from tests.e2e.processes import Server, served
from thunder_sdk.reclaim import processes

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NO_BACKEND = ("--backend", "http://127.0.0.1:9")
LEASE_S = 2.0


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def resources(server: Server, program: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{server.url}/thunder/v1/programs/{program}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["resources"]
    return found


def states(server: Server, program: str) -> dict[str, str]:
    return {each["ref"]: each["state"] for each in resources(server, program)}


def test_exactly_what_the_killed_process_held_goes(engine: Engine) -> None:
    older = engine.container(name=engine.name("agent-old"))
    similar = engine.container(name=engine.name("agent-sandbox"))
    image = engine.image("base", older)
    one, other = f"one-{engine.mark}", f"other-{engine.mark}"
    with served(*NO_BACKEND) as server:
        with (
            agent(server.url, one, engine.mark, lease=LEASE_S) as doomed,
            agent(server.url, other, engine.mark, lease=LEASE_S) as living,
        ):
            held = {
                who: [who.ask(word) for word in ("declared", "declared", "labelled")]
                for who in (doomed, living)
            }
            doomed.ask("claim", engine.name("agent-old"))  # which it did not make
            doomed.kill()
            eventually(lambda: not any(engine.exists("container", ref) for ref in held[doomed]))
            eventually(lambda: states(server, one)[engine.name("agent-old")] == "spared")
            assert all(engine.exists("container", ref) for ref in held[living])
            living.ask("close")
            eventually(lambda: not any(engine.exists("container", ref) for ref in held[living]))
        assert all(engine.exists("container", ref) for ref in (older, similar))
        assert engine.exists("image", image)
        assert set(states(server, other).values()) == {"reclaimed"}


def test_directories_and_processes_go_too(engine: Engine, tmp_path: Path) -> None:
    with (
        served(*NO_BACKEND, "--resource-root", str(tmp_path)) as server,
        agent(server.url, f"p-{engine.mark}", engine.mark, lease=LEASE_S) as doomed,
    ):
        directory = Path(doomed.ask("directory", str(tmp_path)))
        pid, _, started = doomed.ask("process").partition(":")
        (directory / "large").write_bytes(b"x" * 1_000_000)
        doomed.kill()
        eventually(lambda: not directory.exists())
        eventually(lambda: processes.start_time(int(pid)) != started)


def test_without_a_server_the_sdk_does_it(engine: Engine) -> None:
    with (
        served(*NO_BACKEND) as server,
        agent(server.url, f"p-{engine.mark}", engine.mark) as orphan,
    ):
        ref = orphan.ask("declared")
        server.stop(signal.SIGKILL)
        orphan.ask("close")
        eventually(lambda: not engine.exists("container", ref))


def test_a_server_that_was_killed_remembers(engine: Engine, tmp_path: Path) -> None:
    words = (*NO_BACKEND, "--state", str(tmp_path / "state"))
    one, other = f"one-{engine.mark}", f"other-{engine.mark}"
    with (
        served(*words) as server,
        agent(server.url, one, engine.mark, lease=LEASE_S) as doomed,
        agent(server.url, other, engine.mark, lease=LEASE_S) as living,
    ):
        lost, kept = doomed.ask("declared"), living.ask("declared")
        server.stop(signal.SIGKILL)
        doomed.kill()
        with served(*words, "--port", server.url.rpartition(":")[2]):
            eventually(lambda: not engine.exists("container", lost))
            assert engine.exists("container", kept)
            living.ask("close")
            eventually(lambda: not engine.exists("container", kept))
