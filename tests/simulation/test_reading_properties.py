"""Whatever a file holds, it is traffic that can be replayed or a `TraceError` that names it; nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_server.simulation.jsonlines import TraceError
from thunder_server.simulation.reading import read
from thunder_server.simulation.workload import Gap, Session

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
REQUEST = {"t": 1.0, "in": 640, "out": 20, "hash_ids": [1, 2], "think_time": 1.0, "input_types": ["text"]}
SUBAGENT = {"type": "subagent", "agent_id": "x", "duration_ms": 900, "requests": [REQUEST]}
SESSION = {
    "id": "s",
    "models": ["m"],
    "block_size": 64,
    "tool_tokens": 5,
    "requests": [REQUEST, SUBAGENT, REQUEST],
}
ARRIVED = {"id": 1, "at": 1.0, "type": "call.arrived", "program_id": "p", "call_id": "c", "model": "m"}
FINISHED = {
    "id": 2,
    "at": 2.0,
    "type": "call.finished",
    "program_id": "p",
    "call_id": "c",
    "end": "completed",
} | {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "cached_tokens": 0,
}
LOGGED = {
    "timestamp": 1.0,
    "duration": 1.0,
    "session_id": "s",
    "headers": {"X-Session-ID": "s"},
    "metadata": {},
    "request": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "metadata": {}},
    "response": {
        "id": "r",
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {}},
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the value itself among them."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@st.composite
def damaged(draw: st.DrawFn, lines: list[Any]) -> list[Any]:
    """The lines with a few of their parts replaced by anything, and perhaps one of them there twice."""
    lines = list(lines)
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = replaced(lines[number], draw(st.sampled_from(places(lines[number]))), draw(ANYTHING))
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(lines)))
    return lines


def check(path: Path) -> None:
    try:
        traffic = read([path])
    except TraceError as refused:
        assert str(path) in str(refused)  # noqa: PT017 - either way is right
        return
    assert traffic.starts
    for start in traffic.starts:
        assert start.at >= 0
        can_be_replayed(start.session)


def can_be_replayed(session: Session) -> None:
    assert session.turns
    assert session.turns[0].gap is Gap.START
    assert session.turns[0].shared_tokens == 0
    for turn in session.turns:
        assert turn.prompt_tokens > 0
        assert turn.output_tokens > 0
        assert 0 <= turn.shared_tokens <= turn.prompt_tokens
        assert 0 <= turn.gap_s < float("inf")
        assert session.system_tokens <= turn.prompt_tokens
        for child in turn.children:
            can_be_replayed(child)


@pytest.mark.parametrize(
    "lines",
    [[SESSION, SESSION | {"id": "t"}], [ARRIVED, FINISHED], [LOGGED, LOGGED | {"timestamp": 9.0}]],
    ids=["trace", "stream", "log"],
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_lines(tmp_path: Path, lines: list[Any], data: st.DataObject) -> None:
    path = tmp_path / "traffic.jsonl"
    text = "\n".join(json.dumps(line) for line in data.draw(damaged(lines)))
    path.write_text(text + data.draw(st.sampled_from(["", "\n", "\r\n", "\n{", "\n\n\x00"])))
    check(path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), cut=st.integers(0, 40), zipped=st.booleans())
def test_any_bytes(tmp_path: Path, content: bytes, cut: int, zipped: bool) -> None:
    path = tmp_path / "traffic"
    path.write_bytes(gzip.compress(content, mtime=0)[: -cut or None] if zipped else content)
    check(path)
