"""Recorded traffic of three kinds: what is made of it, what is left out, what broken files are told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from thunder_server.simulation.jsonlines import TraceError
from thunder_server.simulation.reading import read, source_of
from thunder_server.simulation.traffic import Source, Traffic
from thunder_server.simulation.workload import Gap

SYSTEM = {"role": "system", "content": "You fix bugs. " * 30}


class Files:
    """Writes files and reads them as traffic."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, content: str | bytes, name: str = "traffic.jsonl") -> Path:
        path = self._folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def lines(self, *values: object, name: str = "traffic.jsonl") -> Path:
        return self.write("".join(json.dumps(value) + "\n" for value in values), name)

    def read(self, *values: object) -> Traffic:
        return read([self.lines(*values)])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def shape(traffic: Traffic) -> dict[str, list[tuple[int, int, int, float]]]:
    """Prompt, output, shared tokens and gap of each turn, by program."""
    return {
        start.session.id: [
            (turn.prompt_tokens, turn.output_tokens, turn.shared_tokens, round(turn.gap_s, 3))
            for turn in start.session.turns
        ]
        for start in traffic.starts
    }


# --- event streams


def arrived(
    call: str, at: float, program: str = "p", number: int | None = None, **more: Any
) -> dict[str, Any]:
    entry = {"at": at, "type": "call.arrived", "program_id": program, "call_id": call, "model": "m"} | more
    return entry if number is None else {"id": number} | entry


def finished(
    call: str, at: float, prompt: int | None = 100, output: int | None = 10, **more: Any
) -> dict[str, Any]:
    return {
        "at": at,
        "type": "call.finished",
        "program_id": "p",
        "call_id": call,
        "end": "completed",
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "cached_tokens": None,
    } | more


class TestStream:
    def test_calls_become_programs_that_began_when_they_did(self, files: Files) -> None:
        traffic = files.read(
            arrived("a", 1000.0),
            finished("a", 1002.0, 100),
            arrived("x", 1004.5, "q"),
            finished("x", 1005.0, 50, program_id="q"),
            {"at": 1005.0, "type": "program.phase", "program_id": "p", "phase": "acting", "tool": "bash"},
            arrived("b", 1005.5),
            finished("b", 1006.0, 150, cached_tokens=96),
            arrived("c", 1006.5),
            finished("c", 1007.0, 60, cached_tokens=32),
        )
        assert traffic.source is Source.STREAM
        assert shape(traffic) == {
            "p": [(100, 10, 0, 0.0), (150, 10, 100, 3.5), (60, 10, 32, 0.5)],
            "q": [(50, 10, 0, 0.0)],
        }
        assert [start.at for start in traffic.starts] == [0.0, 4.5]
        assert traffic.hit_rate == 128 / 210
        assert traffic.notes == ("1 of 2 programs did not tell of their tools",)

    def test_is_read_as_it_came_over_the_wire(self, files: Files) -> None:
        entries = [arrived("a", 1.0, number=7), finished("a", 2.0, id=8)]
        frames = "".join(f"id: {entry['id']}\ndata: {json.dumps(entry)}\n\n" for entry in entries)
        path = files.write(f': hello\n\n{frames}: still here\n\nid: 9\ndata: {{"id": 9, "at"')
        traffic = read([path])
        assert shape(traffic) == {"p": [(100, 10, 0, 0.0)]}
        assert traffic.skipped == {"entry cut off at the end of the file": 1}

    def test_every_way_in_which_a_call_tells_nothing_is_counted(self, files: Files) -> None:
        twice = arrived("a", 1.0, number=5)
        traffic = files.read(
            twice,
            twice,
            finished("a", 2.0),
            finished("before", 2.0),
            *(arrived(name, 3.0) for name in ("refused", "cut", "none", "empty", "running", "failed")),
            {
                "at": 4.0,
                "type": "call.refused",
                "program_id": "p",
                "call_id": "refused",
                "code": "no_backend",
            },
            {"at": 4.0, "type": "call.cancelled", "program_id": "p", "call_id": "cut"},
            finished("none", 4.0, None),
            finished("empty", 4.0, 0),
            finished("failed", 4.0, end="engine_refused"),
            {"at": 5.0, "type": "stream.gap", "missed": 3},
            {"at": 5.0, "type": "stream.gap", "missed": None},
        )
        assert traffic.skipped == {
            "entry that is there twice": 1,
            "call whose beginning is not in the capture": 1,
            "call that failed": 3,
            "call without usage": 1,
            "call without a prompt or an output": 1,
            "call whose end is not in the capture": 1,
        }
        assert "the capture has 1 gaps: entries are missing where it was too slow" in traffic.notes

    def test_generations_of_an_id_are_programs_of_their_own(self, files: Files) -> None:
        opened = {"at": 3.0, "type": "program.opened", "program_id": "p", "generation": 2}
        traffic = files.read(
            arrived("a", 1.0), finished("a", 2.0), opened, arrived("b", 3.0), finished("b", 4.0)
        )
        assert [start.session.id for start in traffic.starts] == ["p", "p#2"]

    @pytest.mark.parametrize(
        ("entries", "complaint"),
        [
            ([arrived("a", -1.0)], "line 1: 'at' is negative (-1.0)"),
            ([arrived("a", 1.0), arrived("a", 2.0)], "line 2: 'call_id' 'a' has arrived already"),
            ([arrived("a", 5.0), finished("a", 4.0)], "line 2: 'at' goes back in time (4.0 after 5.0)"),
            ([arrived("a", 5.0), finished("a", 6.0, -3)], "line 2: 'prompt_tokens' is negative (-3)"),
            ([arrived("a", 5.0), finished("a", 6.0, 1.5)], "line 2: 'prompt_tokens' must be a whole number"),
            (
                [arrived("a", 5.0), finished("a", 6.0, cached_tokens=101)],
                "line 2: 'cached_tokens' is 101, more than the prompt holds",
            ),
            ([arrived("a", 5.0), {"at": 6.0}], "line 2: 'type' is missing"),
            ([arrived("a", 5.0), [1]], "line 2: must be a JSON object"),
            (
                [arrived("a", 5.0)],
                "holds no answered call (left out: 1 × call whose end is not in the capture)",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, files: Files, entries: list[Any], complaint: str) -> None:
        with pytest.raises(TraceError) as refused:
            files.read(*entries)
        assert complaint in str(refused.value)
        assert "traffic.jsonl" in str(refused.value)


# --- logs


def logged(
    at: Any, *messages: str, took: float = 1.0, tokens: int | None = None, **more: Any
) -> dict[str, Any]:
    said = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(messages)
    ]
    size = sum(map(len, messages)) if tokens is None else tokens
    return {
        "timestamp": at,
        "duration": took,
        "request": {"model": "m", "messages": [SYSTEM, *said]},
        "response": {"usage": {"prompt_tokens": size, "completion_tokens": 10}},
    } | more


class TestLog:
    def test_named_programs_in_whatever_order_lines_come(self, files: Files) -> None:
        traffic = files.read(
            logged(110.0, "x" * 90, "ok", "y" * 90, tokens=200, session_id="s"),
            logged(100.0, "x" * 90, tokens=100, session_id="s"),
        )
        assert traffic.source is Source.LOG
        assert shape(traffic) == {"s": [(100, 10, 0, 0.0), (200, 10, 100, 9.0)]}

    def test_unnamed_calls_go_on_where_their_prompts_do(self, files: Files) -> None:
        traffic = files.read(
            logged(0, "one"),
            logged(0.1, "two"),
            logged(0.2, "two"),  # a group: the same prompt, another program
            logged(5, "two", "a", "b"),
            logged(6, "one", "c", "d"),
            logged(7, "two", "e", "f"),
            logged(9, "two", "a", "b", "c", "d"),
        )
        assert [len(start.session.turns) for start in traffic.starts] == [2, 3, 2]
        assert traffic.notes == (
            "7 of 7 calls name no program; they were put together by how their prompts begin",
        )

    def test_system_prompts_and_groups_are_shared_beginnings(self, files: Files) -> None:
        traffic = files.read(
            logged(0, "one", tokens=1000), logged(1, "two", tokens=1000), logged(2, "two", tokens=1000)
        )
        one, two, three = (start.session for start in traffic.starts)
        assert one.model != two.model == three.model
        assert (two.system_tokens, three.system_tokens) == (1000, 1000)
        assert 900 < one.system_tokens < 1000
        assert traffic.repeated_tokens == one.system_tokens + 1000

    def test_a_compacted_prompt_shares_what_it_still_has(self, files: Files) -> None:
        traffic = files.read(
            logged(0, "x" * 500, "ok", "y" * 800, session_id="s", tokens=1000),
            logged(9, "x" * 500, "summary", session_id="s", tokens=600),
        )
        ((_, _, shared, _),) = shape(traffic)["s"][1:]
        assert 400 < shared < 600

    @pytest.mark.parametrize(
        "more",
        [
            {"program_id": "s"},
            {"metadata": {"session_id": "s"}},
            {"headers": {"X-Session-ID": "s"}},
            {"trace_id": "s"},
        ],
    )
    def test_programs_are_named_in_many_places(self, files: Files, more: dict[str, Any]) -> None:
        traffic = files.read(logged(0, "one", **more), logged(9, "something else", **more))
        assert list(shape(traffic)) == ["s"]
        assert traffic.notes == ()

    @pytest.mark.parametrize(
        ("sent", "ended"),
        [
            ("2026-01-01T00:00:00Z", "2026-01-01T00:00:02.5+00:00"),
            ("2026-01-01 00:00:00", "2026-01-01T01:00:02.5+01:00"),
            (1767225600, 1767225602.5),
            (1767225600000, 1767225602500),
        ],
    )
    def test_times_are_understood(self, files: Files, sent: Any, ended: Any) -> None:
        first = logged(sent, "one", session_id="s") | {"duration": None, "endTime": ended}
        second = logged(1767225605.0, "one", "a", "b", session_id="s")
        assert shape(files.read(first, second))["s"][1][3] == 2.5

    def test_shapes_of_other_apis(self, files: Files) -> None:
        anthropic = {
            "ts": 1,
            "latency_ms": 500,
            "session_id": "a",
            "body": {"model": "c", "system": "be brief", "messages": [{"role": "user", "content": "hi"}]},
            "response": {
                "usage": {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 60,
                    "cache_creation_input_tokens": 30,
                    "output_tokens": 5,
                }
            },
        }
        responses = [
            {
                "time": at,
                "request": {"body": {"model": "r", "input": text} | more},
                "response": {"body": {"id": name, "usage": {"input_tokens": size, "output_tokens": 7}}},
                "latency": 1,
            }
            for at, name, text, size, more in (
                (2, "r1", "hello", 70, {}),
                (5, "r2", "go on", 95, {"previous_response_id": "r1"}),
            )
        ]
        completion = {
            "time": 9,
            "model": "t",
            "prompt": "p" * 4000,
            "completion": {"choices": [{"text": "q" * 80}]},
        }
        traffic = files.read(anthropic, *responses, completion)
        assert shape(traffic) == {
            "a": [(100, 5, 0, 0.0)],
            "unnamed-2": [(70, 7, 0, 0.0), (95, 7, 70, 2.0)],
            "unnamed-3": [(1000, 23, 0, 0.0)],
        }
        assert traffic.hit_rate == 0.6
        assert any("1 of 4 calls have no usage" in note for note in traffic.notes)
        assert any("1 of 4 calls do not say when they were answered" in note for note in traffic.notes)

    def test_a_tools_answer_at_the_end_tells_what_the_gap_was(self, files: Files) -> None:
        def ending(last: dict[str, Any]) -> Gap:
            second = logged(9, "a", session_id="s")
            second["request"]["messages"].append(last)
            return files.read(logged(0, "a", session_id="s"), second).starts[0].session.turns[1].gap

        assert ending({"role": "tool", "content": "done"}) is Gap.TOOL
        assert ending({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}) is Gap.TOOL
        assert ending({"role": "user", "content": "and now?"}) is Gap.HUMAN

    def test_what_was_written_twice_counts_once(self, files: Files) -> None:
        answer = {"id": "r1", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
        one, other = (logged(at, "one") | {"response": answer} for at in (0, 5))
        traffic = files.read(one, other, one)
        assert sum(start.session.calls for start in traffic.starts) == 2
        assert traffic.skipped == {"call that is there twice": 1}

    def test_what_was_no_generation_is_counted(self, files: Files) -> None:
        traffic = files.read(
            logged(0, "one"),
            logged(1, "two", status_code=500),
            logged(1, "two", error="time-out"),
            {"timestamp": 2, "request": {"model": "e", "documents": ["…"]}, "response": {}},
            logged(3, "three", tokens=0),
        )
        assert traffic.skipped == {
            "call that failed": 2,
            "call that generates no text": 1,
            "call without a prompt or an output": 1,
        }

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            (logged(None, "x"), "line 2: does not say when it was sent"),
            (logged(-5, "x"), "line 2: 'timestamp' is negative (-5)"),
            (logged(float("nan"), "x"), "line 2: 'timestamp' must be a number of seconds, not nan"),
            (
                logged("yesterday", "x"),
                "line 2: 'timestamp' must be Unix seconds or ISO 8601, not 'yesterday'",
            ),
            (logged(1, "x", took=-1), "line 2: 'duration' is negative (-1)"),
            (logged(9, "x") | {"duration": None, "end_time": 3}, "line 2: was answered before it was sent"),
            (logged(1, "x", tokens=-4), "line 2, response, usage: 'prompt_tokens' is negative (-4)"),
            (
                logged(1, "x")
                | {
                    "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}},
                    "response": {},
                },
                "line 2: 'cached_tokens' is 6, more than the prompt holds",
            ),
            (
                {"timestamp": 1, "request": {"messages": 7}},
                "line 2, request: 'messages' must be a list or a text",
            ),
            ("text", "line 2: must be a JSON object, not str"),
        ],
    )
    def test_what_is_wrong_is_named(self, files: Files, line: object, complaint: str) -> None:
        with pytest.raises(TraceError) as refused:
            files.read(logged(0, "fine"), line)
        assert complaint in str(refused.value)


# --- any kind


class TestAnyKind:
    def test_traces_are_known_by_their_requests(self, files: Files) -> None:
        request = {"t": 0, "in": 100, "out": 10, "hash_ids": [1]}
        traffic = files.read({"id": "a", "requests": [request, request | {"out": 0}]})
        assert (traffic.source, traffic.calls, traffic.hit_rate) == (Source.TRACE, {}, None)
        assert traffic.skipped == {"turn without an output": 1}

    def test_several_files_of_one_kind_are_one(self, files: Files) -> None:
        one = files.lines(arrived("a", 1.0), name="one")
        two = files.write(gzip.compress(json.dumps(finished("a", 2.0)).encode()), name="two.gz")
        assert shape(read([one, two])) == {"p": [(100, 10, 0, 0.0)]}

    def test_several_kinds_are_not(self, files: Files) -> None:
        paths = [files.lines(logged(0, "x"), name="log"), files.lines(arrived("a", 1.0), name="stream")]
        with pytest.raises(
            TraceError, match=r"stream: is of kind event stream, .*log is of kind request log"
        ):
            read(paths)

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"", "is empty"),
            (b"\n\r\n", "is empty"),
            (b"[1, 2]\n", "line 1: is a JSON array; write one object a line"),
            (b'{"hello": 1}\n', "line 1: is neither a session of a trace"),
            (b'{"id": "a"}\n', "line 1: 'requests' is missing"),
            (
                b'{"do": "begin", "version": 1}\n',
                "line 1: is of the journal that a server keeps of resources",
            ),
            (b"hello\n", "line 1: is not JSON"),
            (b"\xff\xfeh\x00", "is not UTF-8 text"),
            (gzip.compress(b'{"hello": 1}\n', mtime=0)[:-15], "cannot be read"),
        ],
    )
    def test_what_is_none_of_them_is_refused(self, files: Files, content: bytes, complaint: str) -> None:
        path = files.write(content, "mystery")
        with pytest.raises(TraceError, match="mystery") as refused:
            read([path])
        assert complaint in str(refused.value)

    def test_a_byte_order_mark_and_windows_line_ends_are_no_harm(self, files: Files) -> None:
        lines = "\r\n".join(json.dumps(one) for one in (arrived("a", 1.0), finished("a", 2.0)))
        path = files.write(b"\xef\xbb\xbf" + lines.encode() + b"\r\n")
        assert source_of(path) is Source.STREAM
        assert len(read([path]).starts) == 1
