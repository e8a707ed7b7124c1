"""An agent that holds what it is told to, as a process of its own.

It reads lines like ``container label`` or ``close`` and answers each with one line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.docker_engine import IMAGE
from tests.e2e.processes import clean_environ

AGENT = f"""
import json, subprocess, sys, tempfile
import docker
import thunder_sdk as thunder

options = json.loads(sys.argv[1])
thunder.init(options["url"], lease=options["lease"])
api = docker.APIClient(version="auto")
p = thunder.program(program_id=options["id"]).__enter__()

def container(host=None, labels=None):
    ref = api.create_container({IMAGE!r}, ["sleep", "1000"], labels=labels or {{}})["Id"]
    api.start(ref)
    return ref

def do(word, argument=None):
    match word:
        case "declared":
            ref = container(labels={{"thunder-test": options["mark"]}})
            p.resources.container(ref, host=argument)
            return ref
        case "labelled":
            return container(labels={{"thunder-test": options["mark"], "thunder.program": p.id}})
        case "claim":
            p.resources.container(argument)
        case "directory":
            return p.resources.directory(tempfile.mkdtemp(dir=argument)).ref
        case "process":
            return p.resources.process(subprocess.Popen(["sleep", "1000"])).ref
        case "close":
            p.close()
    thunder.flush(10)
    return ""

print(p.id, flush=True)
for line in sys.stdin:
    answer = do(*line.split())
    if not line.startswith("close"):
        thunder.flush(10)
    print(answer, flush=True)
"""


class Agent:
    """One program, in a process that can be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.program = self._line()

    def ask(self, *words: str) -> str:
        """Has it do something; what it says."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        """SIGKILL: it cannot say good-bye."""
        self.process.kill()
        self.process.wait(30)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the agent has died"
        return line.strip()


@contextmanager
def agent(url: str, program_id: str, mark: str, *, lease: float = 60.0, **environ: str) -> Generator[Agent]:
    """An agent whose containers carry the test's `mark`; killed at the end if it still runs."""
    options = json.dumps({"url": url, "id": program_id, "mark": mark, "lease": lease})
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, options],
        env=clean_environ(**environ),
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Agent(process)
        finally:
            process.kill()
