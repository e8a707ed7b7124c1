"""The real OpenHands SDK and agent server through a real server of ours, the model scripted."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..harness.dialogue import Fails, Hangs, Tool, calls
from ..harness.engine import ours
from ..harness.lanes import Run

AGENTS = Path(__file__).with_name("agents.py")
BIN = AGENTS.with_name("bin")
SCRIPT = (
    calls(Tool("terminal", {"command": "echo hello", "timeout": 7})),
    calls(Tool("terminal", {"command": "echo one"}), Tool("terminal", {"command": "echo two"})),
    calls(Tool("finish", {"message": "done"})),
)
DELEGATION = (
    calls(Tool("task", {"prompt": "look", "description": "helper"})),
    calls(Tool("finish", {"message": "done"})),
)
CALL, ACT = ["call.arrived", "call.finished"], ["acting.started", "acting.finished"]

pytestmark = pytest.mark.lane("b")


@pytest.fixture
def agent_server(lane) -> Iterator[str]:
    """The real agent server, which knows nothing of us."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A fork on it has lost its model's key, so it needs one of its own.
    environ = {"OH_ENABLE_VSCODE": "0", "OPENAI_API_KEY": "sk-test"}
    process = lane.start("-m openhands.agent_server", "--port", str(port), **environ)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                assert process.poll() is None, process.communicate()[1][-3000:]
                assert time.monotonic() < deadline, "the agent server did not start"
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.proves("openhands", "identity", "acting", "expected duration", "end", "streaming", "async")
def test_a_conversation_is_a_program(through_server, engine, server):
    engine.plays(*SCRIPT)
    told, streamed, untouched, is_theirs = through_server.run(AGENTS, "local").result
    (first, *_), (fork, *_), (stream, *_) = told
    assert [status for _, status in told] == ["finished"] * 3
    assert (streamed, is_theirs) == (True, True)
    assert untouched == {"X-Own": "1", "x-thunder-group": "mine"}

    assert [seen.header("x-litellm-session-id") for seen in engine.requests] == (
        [first] * 3 + [fork] + [stream] * 3
    )
    assert {(seen.header("x-own"), seen.json["seed"]) for seen in engine.requests} == {("1", 7)}
    assert story(server, first) == (CALL * 3, Counter(ACT * 4), "program.terminated")
    assert story(server, fork) == (CALL, Counter(ACT), "program.terminated")
    assert story(server, stream) == (CALL * 3, Counter(ACT * 4), "program.terminated")

    acts = server.story(first, *ACT)
    assert [(act["tool"], act["expected_s"]) for act in acts if act["type"] == ACT[0]] == [
        ("terminal", 7.0),
        ("terminal", None),
        ("terminal", None),
        ("finish", None),
    ]
    assert len({act["call_id"] for act in acts}) == 4
    assert all(act["ok"] for act in acts if act["type"] == ACT[1])
    one = server.program(first)
    assert (one["name"], one["priority"], one["parent_id"]) == ("first", 3, "mine")
    assert one["group"] == "mine", "a header that the user sets goes before ours, however it is spelt"
    assert [server.program(program)["outcome"] for program in (first, fork, stream)] == ["success"] * 3


@pytest.mark.proves("openhands", "children")
def test_forks_and_sub_agents_are_children(through_server, engine, server):
    engine.plays_by(lambda seen: DELEGATION if asked(seen) == "delegate" else SCRIPT)
    told = through_server.run(AGENTS, "delegated").result
    assert [status for _, status in told] == ["finished"] * 3
    said = [
        (seen.header("x-litellm-session-id"), seen.header("x-session-id"), asked(seen))
        for seen in engine.requests
    ]
    for number, (parent, _) in enumerate(told):
        mine = said[number * 5 : number * 5 + 5]
        children = {session for session, _, text in mine if text == "look"}
        assert len(children) == 1, said
        (child,) = children
        assert [session for session, _, _ in mine] == [parent, child, child, child, parent]
        assert all(tagged in (None, session) for session, tagged, _ in mine)
        assert server.program(child)["parent_id"] == parent
        assert server.program(child)["name"] == "helper"
        assert server.ended(child)["outcome"] == server.ended(parent)["outcome"] == "success"
        assert Counter(server.types(child, *ACT)) == Counter(ACT * 4)
        assert [entry["tool"] for entry in server.story(parent, ACT[0])] == ["task", "finish"]


@pytest.mark.proves("openhands", "end")
def test_it_ends_with_the_status_of_the_conversation(through_server, engine, server):
    faults = {"refused": Fails(400), "slow": Hangs()}
    engine.refuses(lambda seen: faults.get(asked(seen)))
    started = through_server.home / "started"
    os.mkfifo(started)
    process = through_server.start(AGENTS, "ends", STARTED=str(started))
    engine.wait_for(lambda requests: any(asked(seen) == "slow" for seen in requests), timeout=90)
    started.write_text("the engine has it")
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err[-3000:]
    told, refused, slow, unrun, broken = Run(0, out, err).result
    assert told == ["ConversationRunError", "ValueError"]
    outcomes = {program: server.ended(program)["outcome"] for program in (refused, slow, unrun, broken)}
    assert outcomes == {refused: "error", slow: "dropped", unrun: "success", broken: "error"}


@pytest.mark.proves("openhands", "threads")
def test_threads_never_tag_with_a_wrong_program(through_server, engine, server):
    engine.plays(*SCRIPT)
    ids = through_server.run(AGENTS, "threads").result
    said = Counter((asked(seen), seen.header("x-session-id")) for seen in engine.requests)
    assert said == {**dict.fromkeys(ids.items(), 3), ("nobody's", None): 3}


@pytest.mark.timeout(300)
@pytest.mark.proves("openhands", "identity", "children")
def test_on_an_agent_server(through_server, agent_server, engine, server):
    engine.plays_by(lambda seen: DELEGATION if asked(seen) == "delegate" else SCRIPT)
    told = through_server.run(AGENTS, "remote", AGENT_SERVER=agent_server).result
    (first, _), (fork, _), (made, _) = told
    assert [status for _, status in told] == ["finished"] * 3
    sessions = {seen.header("x-litellm-session-id") for seen in engine.requests}
    assert {first, fork, made} < sessions
    (helper,) = sessions - {first, fork, made}
    for program, parent in ((first, "here"), (fork, first), (made, None), (helper, made)):
        one = server.program(program)
        assert (one["parent_id"], one["group"]) == (parent, "mine")
    for program, tools in ((first, ACT * 4), (fork, ACT), (made, ACT * 2)):
        assert Counter(server.types(program, *ACT)) == Counter(tools)
        assert server.ended(program)["outcome"] == "success"
    assert [entry["expected_s"] for entry in server.story(first, ACT[0])] == [7.0, None, None, None]


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.proves("openhands", "resources")
def test_a_workspaces_container_is_declared(through_server, agent_server, server, engine, image):
    environ = {"AGENT_SERVER": agent_server, "IMAGE": image, "PATH": f"{BIN}:{os.environ['PATH']}"}
    run = through_server.run(AGENTS, "in_docker", timeout=200, **environ)
    (made, mine), (given, yours), alive = run.result
    assert alive
    declared = {program: server.story(program, "resource.declared") for program in (made, given)}
    assert [(one["kind"], one["ref"], one["keep"]) for one in declared[made]] == [("container", mine, False)]
    assert [(one["kind"], one["ref"], one["keep"]) for one in declared[given]] == [("container", yours, True)]


def test_nothing_of_ours_reaches_another_host(through_server, engine, server, elsewhere):
    elsewhere.plays(*SCRIPT)
    ((program, _),) = through_server.run(AGENTS, "elsewhere", ELSEWHERE=elsewhere.url + "/v1").result
    by_the_user = {"x-thunder-group": "mine"}
    assert [ours(seen) for seen in elsewhere.requests] == [by_the_user] * 3
    assert engine.requests == []
    assert server.ended(program)["outcome"] == "success"


def test_the_agent_finishes_when_the_server_is_down(server_down, engine):
    engine.plays(*SCRIPT)
    run = server_down.run(AGENTS, "simple")
    assert run.result[0][1] == "finished"
    assert len(run.warnings) == 1, run.err


def test_disabled_leaves_no_trace(disabled, engine, server):
    engine.plays(*SCRIPT)
    run = disabled.run(AGENTS, "simple")
    assert (run.result[0][1], run.warnings) == ("finished", [])
    assert [ours(seen) for seen in engine.requests] == [{}] * 3
    assert server.types(run.result[0][0], *ACT) == []


def story(server, program: str) -> tuple[list[str], Counter[str], str]:
    """Its calls in order, its tools, and what was told last; parallel tools begin and end in any order."""
    return (
        server.types(program, *CALL),
        Counter(server.types(program, *ACT)),
        server.types(program, "call.finished", *ACT, "program.terminated")[-1],
    )


def asked(seen) -> str:
    """The last task of a request's conversation."""
    texts = [message["content"] for message in seen.json["messages"] if message["role"] == "user"]
    return texts[-1] if isinstance(texts[-1], str) else texts[-1][0]["text"]
