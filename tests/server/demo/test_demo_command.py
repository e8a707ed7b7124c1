"""``thunder demo`` as a command: what it refuses, how it fails, and, slowly, what it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from thunder_server.cli.app import app

from .test_measures import FIELDS

THUNDER = [sys.executable, "-c", "from thunder_server.cli import main; main()"]


def demo(*arguments: str) -> Result:
    """The command inside this process, for what ends before any process is started."""
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["demo", *arguments])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--agents", "0"], "--agents"),
        (["--working-set", "-1"], "--working-set"),
        (["--json", "no/such/folder/x.json"], "no folder"),
        (["--html", "/"], "/ cannot be written"),
        (["--sideways"], "--sideways"),
        (["--backend", "gpu:8000"], "gpu:8000"),
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str], complaint: str) -> None:
    done = demo(*arguments)
    assert done.exit_code == 2, done.output
    assert complaint in done.output


def test_a_backend_that_does_not_answer_is_exit_1() -> None:
    done = demo("--backend", "http://127.0.0.1:1/v1/", "http://127.0.0.1:2")
    assert done.exit_code == 1, done.output
    assert "http://127.0.0.1:1/v1/models does not answer" in done.output


def test_without_the_openai_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("raise ModuleNotFoundError('no openai', name='openai')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*THUNDER, "demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'thunder-sdk[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_scheduler_saves_work(tmp_path: Path) -> None:
    done = subprocess.run(
        [*THUNDER, "demo", "--quick", "--json", "results.json", "--html", "page.html"],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    without, scheduled = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert without.keys() == scheduled.keys() == FIELDS
    assert without["policy"] == "passthrough"
    assert without["programs"] == scheduled["programs"] >= 16
    assert without["working_set"] > 1
    assert scheduled["recomputed_tokens"] < 0.6 * without["recomputed_tokens"]
    assert scheduled["hit_rate"] > without["hit_rate"]
    assert scheduled["pauses"] > 0 == without["pauses"]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "as fast" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_ends_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*THUNDER, "demo", "--quick"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("passthrough: starting") for line in process.stdout)
            family = wait_for_children(process.pid)
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "stopped" in said
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def wait_for_children(pid: int) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) >= 3:
            return [int(child) for child in children]
        time.sleep(0.01)
    raise AssertionError("the demo started no processes")
