"""The real SWE-agent through a real server, its model scripted.

Its releases are not on the index (what is called ``sweagent`` there is an old stub), so this runs where somebody
has installed the source into lane a; elsewhere `test_contract` stands in.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..harness.dialogue import Tool, calls
from ..harness.engine import MODEL, ours
from ..harness.lanes import Lane, Run

HERE = Path(__file__).parent
SCRIPT = (
    calls(Tool("bash", {"command": "echo hello"}), text="Let me look."),
    calls(Tool("submit"), text="Done."),
)
# SWE-agent's local deployment writes below /root: into a layer of our own, seen by nobody else.
PRIVATE_ROOT = """
mkdir -p upper work
mount -t overlay overlay -o lowerdir=/root,upperdir=upper,workdir=work /root && exec "$@"
"""

pytestmark = pytest.mark.lane("a")


def swe_agent(lane: Lane, *words: str) -> Run:
    ran = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            PRIVATE_ROOT,
            "sh",
            lane.python,
            "-m",
            "thunder_integrations.sweagent",
            *words,
        ],
        cwd=lane.home,
        env=lane.env(),
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    return Run(ran.returncode, ran.stdout, ran.stderr)


def test_it(through_server, engine, server):
    engine.plays(*SCRIPT)
    common = [
        "--config",
        str(HERE / "config.yaml"),
        "--agent.model.name",
        f"openai/{MODEL}",
        "--agent.model.api_base",
        server.v1,
        "--agent.model.api_key",
        "sk-test",
        "--output_dir",
        "out",
    ]
    run = swe_agent(
        through_server,
        "run",
        *common,
        "--env.deployment.type",
        "local",
        "--problem_statement.text",
        "fix it",
        "--problem_statement.id",
        "one",
    )
    print(run.code, run.out[-3000:], run.err[-3000:])
    for i in server.opened():
        print(
            i,
            server.program(i),
            server.types(i),
            [(e.get("tool"), e.get("ok")) for e in server.story(i, "acting.started", "acting.finished")],
        )
    print([ours(s) for s in engine.requests])
    server.reset()
    engine.reset()
    engine.plays(*SCRIPT)
    (through_server.home / "instances.yaml").write_text(
        "".join(
            f"- {{image_name: '', problem_statement: fix {n}, instance_id: task-{n}}}\n" for n in range(4)
        )
    )
    run = swe_agent(
        through_server,
        "run-batch",
        "--thunder.group",
        "eval-1",
        *common,
        "--instances.type",
        "file",
        "--instances.path",
        "instances.yaml",
        "--instances.deployment.type",
        "local",
        "--num_workers",
        "2",
        "--random_delay_multiplier",
        "0",
    )
    print(run.code, run.out[-3000:], run.err[-3000:])
    for i in server.opened():
        print(
            i,
            server.program(i),
            server.types(i),
            [(e.get("tool"), e.get("ok")) for e in server.story(i, "acting.started", "acting.finished")],
        )
    print([ours(s) for s in engine.requests])
    assert 0
