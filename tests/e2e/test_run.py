"""``thunder run``: a program around any command, in processes of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from .processes import THUNDER, Server, clean_environ, served, thunder

pytestmark = pytest.mark.slow
TELL = "import json, os; print(json.dumps(dict(os.environ)))"
# Says that it is ready, then dies of the first signal, or tells how many it got.
COUNT = """
import signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda n, _: got.append(n))
print("ready", flush=True)
while not got:
    signal.pause()
signal.sigtimedwait([], 0.5)
print(len(got), flush=True)
sys.exit(5)
"""


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with served("--backend", "http://127.0.0.1:9") as server:
        yield server


@pytest.fixture
def dead_url() -> Generator[str]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


def program(server: Server, program_id: str) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/thunder/v1/programs/{program_id}", trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def run(server: Server, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return thunder("run", *words, THUNDER_BASE_URL=server.url, **environ)


def started(url: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*THUNDER, "run", *words],
        env=clean_environ(THUNDER_BASE_URL=url),
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_command_is_a_program_with_all_that_was_said(server: Server) -> None:
    words = ("--name", "label", "--id", "said", "--group", "g", "--priority", "2", "--tag", "a", "--tag", "b")
    more = ("--expected-context", "1000", "--lease", "90", "--max-wait", "7")
    done = run(server, *words, *more, "--", sys.executable, "-c", TELL)
    assert (done.returncode, done.stderr) == (0, "")
    env = json.loads(done.stdout)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"):
        assert env[name] == f"{server.url}/p/said/v1"
    assert env["ANTHROPIC_BASE_URL"] == f"{server.url}/p/said"
    assert env["THUNDER_BASE_URL"] == server.url
    assert json.loads(env["THUNDER_PROGRAM_CONTEXT"])["id"] == "said"
    told = program(server, "said")
    assert (told["name"], told["group"], told["priority"], told["tags"]) == ("label", "g", 2, ["a", "b"])
    assert (told["lease_s"], told["status"], told["outcome"]) == (90, "terminated", "success")


def test_a_label_is_the_commands_name_and_options_after_it_are_its_own(server: Server) -> None:
    done = run(server, "--id", "named", "/bin/echo", "--name", "x", "-h")
    assert done.stdout == "--name x -h\n"
    assert program(server, "named")["name"] == "echo"


@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [("exit 0", 0, "success"), ("exit 7", 7, "error"), ("kill -KILL $$", 137, "dropped")],
)
def test_the_exit_status_is_the_outcome(server: Server, script: str, code: int, outcome: str) -> None:
    done = run(server, "--id", f"exits-{code}", "--", "sh", "-c", script)
    assert done.returncode == code
    assert program(server, f"exits-{code}")["outcome"] == outcome


def test_what_cannot_be_run(server: Server) -> None:
    missing = run(server, "--id", "missing", "--", "no-such-command")
    assert (missing.returncode, missing.stderr) == (
        127,
        "thunder: no-such-command: No such file or directory\n",
    )
    assert program(server, "missing")["outcome"] == "error"
    assert run(server, "--", "/etc/passwd").returncode == 126
    assert run(server).returncode == 2
    wrong = run(server, "--id", "no spaces", "--", "true")
    assert wrong.returncode == 2
    assert "program_id" in wrong.stderr


def test_input_goes_in(server: Server) -> None:
    with started(server.url, "--", "cat", stdin=subprocess.PIPE) as process:
        assert process.communicate("hello\n", timeout=30) == ("hello\n", None)


def test_a_signal_sent_to_it_alone_goes_on(server: Server) -> None:
    with started(server.url, "--id", "told-to-stop", "--", sys.executable, "-c", COUNT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "1\n"
        assert process.wait(30) == 5
    assert program(server, "told-to-stop")["outcome"] == "dropped"


def test_a_signal_that_kills_it(server: Server) -> None:
    ready = "echo ready; exec sleep 60"
    with started(server.url, "--id", "terminated", "--", "sh", "-c", ready) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    assert program(server, "terminated")["outcome"] == "dropped"


def test_at_a_terminal_an_interrupt_arrives_once(server: Server) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        environ = clean_environ(THUNDER_BASE_URL=server.url)
        os.execve(sys.executable, [*THUNDER, "run", "--", sys.executable, "-c", COUNT], environ)
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        seen = b""
        while b"ready" not in seen:
            seen += screen.read(100)
        screen.write(b"\x03")
        while b"1\r\n" not in seen:
            seen += screen.read(100)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_without_a_server_the_command_runs_as_it_would(dead_url: str) -> None:
    done = thunder(
        "run", "--", sys.executable, "-c", TELL, THUNDER_BASE_URL=dead_url, OPENAI_BASE_URL="http://mine/v1"
    )
    assert done.returncode == 0
    assert done.stderr == f"thunder: no server answers at {dead_url}; the command runs without it\n"
    env = json.loads(done.stdout)
    assert env["OPENAI_BASE_URL"] == "http://mine/v1"
    assert "OPENAI_API_KEY" not in env


def test_disabled_leaves_no_trace(dead_url: str) -> None:
    environ = {"THUNDER_BASE_URL": dead_url, "THUNDER_DISABLED": "1"}
    done = thunder("run", "--", sys.executable, "-c", TELL, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    ours = {name: value for name, value in json.loads(done.stdout).items() if "THUNDER" in name}
    assert ours == environ


def test_programs_in_it_are_its_children(server: Server) -> None:
    inside = (
        "import os, thunder_sdk as thunder\n"
        "with thunder.program(program_id='innermost'):\n"
        "    print(os.environ.get('OPENAI_BASE_URL'))"
    )
    nested = [*THUNDER, "run", "--id", "inner", "--keep-urls", "--", sys.executable, "-c", inside]
    done = run(server, "--id", "outer", "--keep-urls", "--", *nested)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert program(server, "innermost")["parent_id"] == "inner"
    assert program(server, "inner")["parent_id"] == "outer"


def test_a_server_with_keys(dead_url: str) -> None:
    with served("--backend", dead_url, "--api-key", "secret") as guarded:
        words = ("--id", "keyed", "--api-key", "secret", "--", sys.executable, "-c", TELL)
        done = thunder("run", *words, THUNDER_BASE_URL=guarded.url, OPENAI_API_KEY="sk-somebody-elses")
        env = json.loads(done.stdout)
        assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == "secret"
        answer = httpx.get(
            f"{guarded.url}/thunder/v1/programs/keyed", headers={"Authorization": "Bearer secret"}
        )
        assert answer.json()["outcome"] == "success"
