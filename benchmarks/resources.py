"""What sandboxes cost with the server in charge of them, and without.

    python benchmarks/resources.py [--programs 60] [--live 12] [--megabytes 64] [--setup-seconds 2]

All agents start at once and work twelve at a time: they think (an emulated engine), use a sandbox (a
container of the Docker engine in use, in which every step writes something), think again. *never cleaned*:
each makes its container when it needs it, and leaves it behind. *managed*: each says with ``environment=``
what it will need. Disk is what the engine says that the containers take. Needs Docker and busybox-static.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import docker

import thunder_sdk as thunder
from tests.docker_engine import IMAGE, make_image

RUN = f"bench-{os.getpid()}-"  # in the ids of its programs
STEPS = 4
# Of the recorded coding agents, the median of first prompts and of answers, in tokens.
PROMPT = 24_500
ANSWER = 216
THUNDER = (sys.executable, "-c", "from thunder_server.cli import main; main()")


@dataclass(kw_only=True)
class Row:
    """One way of doing it."""

    name: str
    makespan_s: float = 0.0
    peak_mb: float = 0.0
    left: int = 0
    waited_s: list[float] = field(default_factory=list)  # how long each agent stood still for its sandbox


@contextmanager
def running(*words: str) -> Iterator[str]:
    """A command of ours that says where it listens."""
    with subprocess.Popen([*THUNDER, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, words
            yield found[0]
        finally:
            process.terminate()


class Disk:
    """The most that containers of our programs took together, by the engine's own account."""

    def __init__(self) -> None:
        self._api = docker.APIClient(version="auto", timeout=120)
        self._over = threading.Event()
        self.peak = 0

    def _watch(self) -> None:
        while not self._over.is_set():
            self.peak = max(self.peak, sum(each.get("SizeRw", 0) for each in ours(self._api, size=True)))
            self._over.wait(1.0)

    def __enter__(self) -> Disk:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def ours(api: Any, **options: Any) -> list[dict[str, Any]]:
    """Containers of this run's programs."""
    labelled = api.containers(all=True, filters={"label": "thunder.program"}, **options)
    return [each for each in labelled if RUN in each["Labels"]["thunder.program"]]


class Run:
    """All agents, one way or the other."""

    def __init__(self, args: argparse.Namespace, url: str, *, managed: bool) -> None:
        self.args = args
        self.url = url
        self.managed = managed
        self.row = Row(name="managed" if managed else "never cleaned")
        self.spec = thunder.DockerEnvironment(
            IMAGE, command=["sleep", "100000"], setup=[f"sleep {args.setup_seconds}"], workdir="/work"
        )

    def all(self) -> Row:
        api = docker.APIClient(version="auto", timeout=120)
        started = time.monotonic()
        with Disk() as disk, ThreadPoolExecutor(self.args.programs) as pool:
            for done in [pool.submit(self.agent, number) for number in range(self.args.programs)]:
                done.result()
            self.row.makespan_s = time.monotonic() - started
            deadline = time.monotonic() + 60 * self.managed
            while ours(api) and time.monotonic() < deadline:
                time.sleep(0.1)
        self.row.left = len(ours(api))
        self.row.peak_mb = disk.peak / 1e6
        for left in ours(api):
            api.remove_container(left["Id"], force=True, v=True)
        return self.row

    def agent(self, number: int) -> None:
        api = docker.APIClient(version="auto", timeout=300)
        environment = self.spec if self.managed else None
        name = f"{RUN}{self.row.name.replace(' ', '-')}-{number}"
        with (
            thunder.http_client(timeout=600) as http,
            thunder.program(program_id=name, environment=environment) as p,
        ):
            self.think(http, name)  # here it queues for its turn
            container = self.managed_sandbox(p) if environment else self.own_sandbox(api, p)
            for step in range(STEPS):
                with p.acting("write"):
                    megabytes = self.args.megabytes // STEPS
                    self.execute(api, container, f"dd if=/dev/zero of=/work/{step} bs=1M count={megabytes}")
                self.think(http, name)

    def think(self, http: Any, name: str) -> None:
        body = {
            "model": "emulated",
            "max_tokens": ANSWER,
            "messages": [{"role": "user", "content": f"{name} {'word ' * PROMPT}"}],
        }
        http.post(f"{self.url}/v1/chat/completions", json=body).raise_for_status()

    def managed_sandbox(self, p: thunder.Program) -> str:
        started = time.monotonic()
        assert p.environment.wait(300)
        self.row.waited_s.append(time.monotonic() - started)
        return str(p.environment.container_id)

    def own_sandbox(self, api: Any, p: thunder.Program) -> str:
        started = time.monotonic()
        container = api.create_container(
            IMAGE,
            ["sleep", "100000"],
            working_dir="/work",
            labels={"thunder.program": f"none-{p.id}"},  # which nobody cleans up
        )["Id"]
        api.start(container)
        for command in self.spec.setup:
            self.execute(api, container, command)
        self.row.waited_s.append(time.monotonic() - started)
        return str(container)

    def execute(self, api: Any, container: str, command: str) -> None:
        running = api.exec_create(container, ["sh", "-c", command])["Id"]
        api.exec_start(running)
        assert api.exec_inspect(running)["ExitCode"] == 0, command


def run(args: argparse.Namespace, *, managed: bool) -> Row:
    with ExitStack() as stack:
        engine = stack.enter_context(running("emulate", "--port", "0", "--preset", "h100-qwen30b"))
        cap = ("--policy", "cap", "--cap", str(args.live))
        url = stack.enter_context(running("serve", "--port", "0", "--backend", engine, *cap))
        thunder.init(url)
        return Run(args, url, managed=managed).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--live", type=int, default=12)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--setup-seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    api = docker.APIClient(version="auto")
    make_image(api)
    rows = [run(args, managed=managed) for managed in (False, True)]
    print(
        f"{args.programs} programs, {args.live} at a time, {args.megabytes} MB each, "
        f"set up in {args.setup_seconds:g} s\n"
    )
    print("| | makespan, s | peak disk, MB | left over | waited for a sandbox, s each | hidden |")
    print("|---|--:|--:|--:|--:|--:|")
    waited = [sum(row.waited_s) / args.programs for row in rows]
    for row, seconds in zip(rows, waited, strict=True):
        print(
            f"| {row.name} | {row.makespan_s:.1f} | {row.peak_mb:,.0f} | {row.left} | {seconds:.2f} | "
            f"{1 - seconds / waited[0]:.1%} |"
        )
    print(f"\npeak disk: {rows[0].peak_mb / rows[1].peak_mb:.1f} times less")
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
