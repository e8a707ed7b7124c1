"""The routes that need no code in the agent: a base URL, and openai's variable for headers."""

from pathlib import Path

import pytest

from ..harness.dialogue import says
from ..harness.engine import ours

AGENT = Path(__file__).with_name("plain_openai.py")

pytestmark = pytest.mark.lane("a", "b")


def test_a_base_url_says_it_all(through_server, engine, server):
    engine.plays(says("one"), says("two"))
    run = through_server.run(AGENT, OPENAI_BASE_URL=f"{server.url}/p/by-url/v1")
    assert run.result == ["one", "two"]
    assert [seen.target for seen in engine.requests] == ["/v1/chat/completions"] * 2
    assert all(not ours(seen) for seen in engine.requests)
    assert server.types("by-url", "call.arrived", "call.finished") == ["call.arrived", "call.finished"] * 2


def test_openais_variable_for_headers(through_server, engine, server):
    through_server.run(AGENT, OPENAI_CUSTOM_HEADERS="X-Thunder-Program-Id: by-header")
    assert len(engine.requests) == 2
    assert server.opened() == ["by-header"]
