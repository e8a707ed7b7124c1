"""The real mini-swe-agent through a real server, its model scripted."""

from pathlib import Path

import pytest

from ..harness.dialogue import Tool, calls
from ..harness.engine import ours

AGENTS = Path(__file__).with_name("agents.py")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"
SCRIPT = (
    calls(Tool("bash", {"command": "echo hello"})),
    calls(Tool("bash", {"command": "echo one"}), Tool("bash", {"command": "echo two"})),
    calls(Tool("bash", {"command": SUBMIT})),
)

pytestmark = pytest.mark.lane("a", "b")


def test_it(through_server, engine, server):
    engine.plays(*SCRIPT)
    for name in ("by_configuration", "by_composition", "model_alone", "in_my_program", "batch"):
        engine.reset()
        engine.plays(*SCRIPT)
        server.reset()
        run = through_server.run(AGENTS, name)
        print(run.out, run.err[-2000:])
        print(server.opened(), [server.program(i) for i in server.opened()][:2])
        for i in server.opened():
            print(i, server.types(i))
        print([ours(s) for s in engine.requests])
    assert 0
