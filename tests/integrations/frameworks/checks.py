"""What holds for an agent of every framework, said once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..harness.dialogue import Tool, Turn, calls, says
from ..harness.engine import Engine, Seen, ours
from ..harness.server import ThunderServer
from .session import Session

AGENTS = Path(__file__).with_name("agents")
LEFT, RIGHT = Tool("lookup", {"key": "left"}), Tool("lookup", {"key": "right"})
BOTH = (calls(LEFT, RIGHT), says("Both found."))
"""Two tool calls at once, which end only if they overlap; then the answer."""
ONE = (calls(Tool("lookup", {"key": "it"})), says("Found."))


def ids(engine: Engine) -> list[str | None]:
    """Whose call each request at the engine was, by the header that every hop leaves alone."""
    return [seen.header("x-session-id") for seen in engine.requests]


def task_of(seen: Seen) -> str:
    """Which of the agents' ``TASKS`` the request is about."""
    (task,) = set(re.findall(r"task-\d+", seen.body.decode()))
    return str(task)


def is_one_program(
    told: dict[str, Any],
    engine: Engine,
    server: ThunderServer,
    *,
    name: str | None,
    expected: float | None = 4.0,
    prompt: bool = True,
) -> str:
    """`BOTH` was one program: identity on every call, two tool calls, a good end. Its id.

    The framework tells of tools when they begin, so the calls are seen to overlap, unless ``prompt=False``.
    """
    assert told["answer"].strip() == "Both found."
    (program,) = server.opened()
    assert ids(engine) == [program] * 2
    acted = acting_overlapped if prompt else acted_twice
    acted(server, program, expected)
    assert server.ended(program)["outcome"] == "success"
    assert server.program(program)["name"] == name
    assert told["seen"] in ([program] * 2, [])
    assert told["after"] is None
    assert told["warnings"] == []
    return program


def acting_overlapped(server: ThunderServer, program: str, expected: float | None) -> None:
    """Two tool calls between two model calls, both under way before either ended, with ids of their own."""
    story = server.types(program, "call.arrived", "acting.started", "acting.finished")
    assert story[:3] == ["call.arrived", "acting.started", "acting.started"], story
    assert sorted(story[3:]) == ["acting.finished", "acting.finished", "call.arrived"]
    acted_twice(server, program, expected)


def acted_twice(server: ThunderServer, program: str, expected: float | None) -> None:
    """Two tool calls, each begun and then ended well, under an id of its own."""
    story = server.story(program, "acting.started", "acting.finished")
    begun = [entry for entry in story if entry["type"] == "acting.started"]
    assert [(entry["tool"], entry["expected_s"]) for entry in begun] == [("lookup", expected)] * 2
    assert len({entry["call_id"] for entry in begun}) == 2
    for entry in begun:
        kinds = [(its["type"], its.get("ok")) for its in story if its["call_id"] == entry["call_id"]]
        assert kinds == [("acting.started", None), ("acting.finished", True)]


def each_task_is_one_program(engine: Engine, server: ThunderServer, tasks: int, calls_each: int) -> None:
    """Nothing was mixed up: as many programs as tasks, and each one's calls are about one task."""
    by_program: dict[str | None, list[str]] = {}
    for seen in engine.requests:
        by_program.setdefault(seen.header("x-session-id"), []).append(task_of(seen))
    assert None not in by_program
    assert len(by_program) == tasks
    assert all(len(set(found)) == 1 and len(found) == calls_each for found in by_program.values()), by_program
    assert {server.ended(str(program))["outcome"] for program in by_program} == {"success"}


def works_alone(session: Session, engine: Engine, *, script: tuple[Turn, ...] = BOTH) -> None:
    """With our server away, the agent comes to its end, and one line says so."""
    engine.plays(*script)
    told = session("run")
    assert told["answer"] == "Both found."
    assert len(told["warnings"]) == 1, told["warnings"]


def leaves_no_trace(
    session: Session, engine: Engine, server: ThunderServer, *, script: tuple[Turn, ...] = BOTH
) -> None:
    """Switched off, nothing of ours is on the wire, and the server hears of nobody."""
    engine.plays(*script)
    told = session("run")
    assert told["answer"] == "Both found."
    assert [ours(seen) for seen in engine.requests] == [{}, {}]
    assert not [entry for entry in server.events if entry["type"].startswith(("acting", "resource"))]
    assert not [program for program in server.opened() if program.startswith("prg_")]
    assert told["warnings"] == []


def is_child_of(server: ThunderServer, child: str, parent: str) -> None:
    """The child ended before its parent, with success both."""
    assert server.program(child)["parent_id"] == parent
    assert server.ended(child)["outcome"] == server.ended(parent)["outcome"] == "success"
    ends = [entry["program_id"] for entry in server.events if entry["type"] == "program.terminated"]
    assert ends.index(child) < ends.index(parent)


def programs_by_name(server: ThunderServer) -> dict[str, str]:
    """``{name: id}`` of what was opened since the test began."""
    return {server.program(program)["name"]: program for program in server.opened()}


def boss_and_helper(seen: Seen) -> tuple[Turn, ...]:
    """For `Engine.plays_by`: a boss who asks a helper, who looks something up."""
    if "Delegate." in seen.body.decode():
        return calls(Tool("ask_helper", {"question": "help me"})), says("All done.")
    return ONE


def boss_has_a_helper(engine: Engine, server: ThunderServer, tool: str = "ask_helper") -> None:
    """The helper was a program of its own below the boss's, which acted meanwhile."""
    names = programs_by_name(server)
    boss, helper = names["boss"], names["helper"]
    assert ids(engine) == [boss, helper, helper, boss]
    is_child_of(server, helper, boss)
    assert [entry["tool"] for entry in server.story(boss, "acting.started")] == [tool]
    assert [entry["tool"] for entry in server.story(helper, "acting.started")] == ["lookup"]


def own_headers_stay(engine: Engine) -> None:
    """``X-Mine`` and a session of the user's own are there once, and so is ``user`` in the body."""
    assert engine.requests
    for seen in engine.requests:
        assert [value for name, value in seen.headers if name.lower() == "x-mine"] == ["1"]
        assert [value for name, value in seen.headers if name.lower() == "x-session-id"] == ["my-own"]
        assert seen.json["user"] == "me"
