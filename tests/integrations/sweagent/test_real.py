"""The real SWE-agent through a real server, its model scripted.

What is called ``sweagent`` on the package index is an old stub; SWE-agent 1.1 comes as source alone. So this
runs where somebody has installed that into lane a, and elsewhere, in CI too, `test_contract` stands in.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..harness.dialogue import Tool, calls
from ..harness.engine import MODEL
from ..harness.lanes import Lane, Run

CONFIG = Path(__file__).with_name("config.yaml")
EXAMPLE = Path(__file__).parents[3] / "examples" / "with_sweagent.py"
SUBMIT = "touch /root/model.patch; echo '<<SWE_AGENT_SUBMISSION>>'"
SCRIPT = (
    calls(Tool("bash", {"command": "echo hello"}), text="Let me look."),
    calls(Tool("bash", {"command": SUBMIT}), text="Done."),
)
# Its local deployment writes below /root: into a layer of the test's own, which nobody else sees.
PRIVATE_ROOT = """
mkdir upper work
mount -t overlay overlay -o lowerdir=/root,upperdir=upper,workdir=work /root && exec "$@"
"""
CALL, ACT = ["call.arrived", "call.finished"], ["acting.started", "acting.finished"]

pytestmark = pytest.mark.lane("a")


@pytest.fixture
def with_source(through_server) -> Lane:
    """Lane a, if SWE-agent is in it."""
    answer = through_server.run("-c", "import sweagent; print(sweagent.__version__)", ok=False)
    if answer.code != 0:
        pytest.skip("SWE-agent is not in lane a: uv pip install its source there, it is on no index")
    return through_server


def swe_agent(lane: Lane, command: str, *words: str, base_url: str) -> Run:
    """One of its commands, through ours."""
    model = {"name": f"openai/{MODEL}", "api_base": base_url, "api_key": "sk-test"}
    options = [f"--agent.model.{name}={value}" for name, value in model.items()]
    ours = ("-m", "thunder_integrations.sweagent", command, "--thunder.group", "eval-1")
    return privately(lane, *ours, "--config", str(CONFIG), *options, *words)


def privately(lane: Lane, *words: str) -> Run:
    """Python in the lane, to its end, where /root is private."""
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PRIVATE_ROOT, "sh", str(lane.python), *words],
        cwd=lane.home,
        env=lane.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "unshare failed" in ran.stderr or "mount:" in ran.stderr:
        pytest.skip(f"no private /root here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return Run(ran.returncode, ran.stdout, ran.stderr)


def test_a_single_run(with_source, engine, server):
    engine.plays(*SCRIPT)
    problem = ("--problem_statement.text=fix it", "--problem_statement.id=one")
    swe_agent(with_source, "run", "--env.deployment.type=local", *problem, base_url=server.v1)
    (program,) = server.opened()
    assert [seen.header("x-session-id") for seen in engine.requests] == [program] * 2
    assert {seen.header("user-agent") for seen in engine.requests} == {"swe-agent/1.1.0"}
    assert server.types(program, *CALL) == CALL * 2
    assert server.types(program, *ACT) == ACT * 2
    assert [entry["tool"] for entry in server.story(program, ACT[0])] == ["echo", "touch"]
    one = server.program(program)
    assert (one["name"], one["group"], one["outcome"]) == ("one", "eval-1", "success")


def test_a_batch(with_source, engine, server):
    engine.plays(*SCRIPT)
    instances = with_source.home / "instances.yaml"
    lines = [f"- {{image_name: '', problem_statement: fix {n}, instance_id: task-{n}}}\n" for n in range(4)]
    instances.write_text("".join(lines))
    source = ("--instances.type=file", "--instances.path=instances.yaml", "--instances.deployment.type=local")
    workers = ("--num_workers=2", "--random_delay_multiplier=0", "--output_dir=out")
    swe_agent(with_source, "run-batch", *source, *workers, base_url=server.v1)
    programs = {server.program(program)["name"]: program for program in server.opened()}
    assert set(programs) == {f"task-{number}" for number in range(4)}
    said = [(asked(seen), seen.header("x-session-id")) for seen in engine.requests]
    assert sorted(said) == sorted([(f"fix {name[-1]}", programs[name]) for name in programs] * 2)
    for program in programs.values():
        assert server.types(program, *CALL) == CALL * 2
        tools = [entry["tool"] for entry in server.story(program, ACT[0])]
        assert [tool for tool in tools if tool in ("echo", "touch")].count("touch") == 1
        assert server.types(program, *ACT) == ACT * len(tools)
        assert server.ended(program)["outcome"] == "success"


def test_the_example(with_source, engine, server):
    engine.plays(*SCRIPT)
    privately(with_source, str(EXAMPLE), MODEL, "local")
    (program,) = server.opened()
    assert [seen.header("x-session-id") for seen in engine.requests] == [program] * 2
    assert server.ended(program)["outcome"] == "success"


def asked(seen) -> str:
    """The problem of a request's conversation."""
    text = next(message["content"] for message in seen.json["messages"] if message["role"] == "user")
    return text if isinstance(text, str) else text[0]["text"]
