"""The real OpenHands SDK through a real server, its model scripted."""

from pathlib import Path

import pytest

from ..harness.dialogue import Tool, calls
from ..harness.engine import ours

AGENTS = Path(__file__).with_name("agents.py")
SCRIPT = (
    calls(Tool("terminal", {"command": "echo hello", "timeout": 7})),
    calls(Tool("terminal", {"command": "echo one"}), Tool("terminal", {"command": "echo two"})),
    calls(Tool("finish", {"message": "done"})),
)

pytestmark = pytest.mark.lane("b")


def test_it(through_server, engine, server):
    engine.plays(*SCRIPT)
    for name in ("local",):
        engine.reset()
        engine.plays(*SCRIPT)
        server.reset()
        run = through_server.run(AGENTS, name)
        print(run.out, run.err[-2000:])
        print([server.program(i) for i in server.opened()])
        for i in server.opened():
            print(i, server.types(i), server.story(i, "acting.started", "acting.finished"))
        print([s.headers for s in engine.requests][:1])
        print([sorted(s.json) for s in engine.requests][:1])
        print([ours(s) for s in engine.requests])
    assert 0
