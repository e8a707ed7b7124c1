"""A program's life, as the server hears of it."""

import pytest

import thunder_sdk as thunder

pytestmark = pytest.mark.usefixtures("sdk")


def paths(server):
    return [(r.method, r.path.rpartition("/")[2], r.query.get("outcome")) for r in server.requests]


def test_a_program_opens_acts_and_closes_in_order(server):
    with thunder.program("solve") as p:
        assert thunder.current_program() is p
        with p.acting("bash", expected=2) as tool:
            pass
    assert thunder.current_program() is None
    assert server.requests[0].method == "PUT"
    assert server.requests[-1].method == "DELETE"
    assert [(e["type"], e["call_id"]) for e in server.events] == [
        ("acting.started", tool.call_id),
        ("acting.finished", tool.call_id),
    ]
    assert (p.status, p.outcome) == ("terminated", "success")
    assert server.programs[p.id].outcome == "success"


async def test_async_programs_nest(server):
    async with thunder.program("outer", group="g", priority=3) as outer:
        async with thunder.program("inner") as inner:
            assert (inner.parent_id, inner.group) == (outer.id, "g")
        assert thunder.current_program() is outer
    assert server.programs[inner.id].fields["priority"] == 3
