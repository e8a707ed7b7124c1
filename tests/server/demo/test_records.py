"""Records survive their way through a pipe; nothing else passes for one."""

from __future__ import annotations

import pytest

from thunder_server.demo.records import Acted, Called, Closed, Failed, Opened, Record, Sending, parse


@pytest.mark.parametrize(
    "record",
    [
        Opened(program="p", name="näme\n", parent=None, at=1.5),
        Sending(program="p", at=2.0, prompt_tokens=7),
        Called(
            program="p",
            sent=1.0,
            answered=2.0,
            wait_s=0.5,
            backend="h:1",
            prompt_tokens=1,
            completion_tokens=2,
            cached_tokens=None,
            reusable_tokens=0,
        ),
        Failed(program="p", at=3.0, error="why"),
        Acted(program="p", tool="bash", started=1.0, ended=2.0),
        Closed(program="p", at=9.0),
    ],
)
def test_a_line_and_back(record: Record) -> None:
    line = record.to_line()
    assert "\n" not in line
    assert parse(line.encode()) == record


@pytest.mark.parametrize(
    "line", ["", "ready", "[]", "{}", '{"kind": "opened"}', '{"kind": "x", "program": "p"}']
)
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(line)
