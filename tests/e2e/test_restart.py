"""A server that is killed knows after its next start what programs hold."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from .processes import clean_environ, served

pytestmark = pytest.mark.slow

AGENT = """
import sys
import thunder_sdk as thunder
with thunder.program(program_id=sys.argv[1], lease=3.0) as p:
    p.resources.directory(sys.argv[2])
    thunder.flush(30)
    print("holds it", flush=True)
    sys.stdin.read()
"""


def until(holds: Callable[[], object], what: str, timeout: float = 40.0) -> None:
    """Poll: what is waited for happens in another process."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.05)


def resources(url: str, program_id: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/thunder/v1/resources?program_id={program_id}") as answer:
        return [one["state"] for one in json.load(answer)["resources"]]


def agent(url: str, program_id: str, work: Path) -> subprocess.Popen[str]:
    work.mkdir()
    command = [sys.executable, "-c", AGENT, program_id, os.fspath(work)]
    environ = clean_environ(THUNDER_BASE_URL=url)
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds it\n"
    return process


def test_the_living_keep_what_they_hold_and_the_dead_lose_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
    words = ("--backend", "http://127.0.0.1:9", "--port", port, "--resource-root", os.fspath(tmp_path))
    environ = {"XDG_STATE_HOME": os.fspath(tmp_path / "state")}
    lives, dies, closes = tmp_path / "lives", tmp_path / "dies", tmp_path / "closes"
    with served(*words, **environ) as first:
        living = agent(first.url, "lives", lives)
        dying = agent(first.url, "dies", dies)
        closing = agent(first.url, "closes", closes)
        first.stop(signal.SIGKILL)
    dying.kill()
    dying.communicate()
    with served(*words, **environ) as second:
        assert second.url == first.url
        until(lambda: not dies.exists(), "what the dead one held is gone")
        until(lambda: resources(second.url, "dies") == ["reclaimed"], "and said so")
        assert lives.exists()
        assert resources(second.url, "lives") == ["declared"]
        closing.communicate("")
        until(lambda: not closes.exists(), "what the closed one held is gone")
        living.communicate("")
        until(lambda: not lives.exists(), "what the living one held is gone")
