"""Traces: what the packaged set holds, how recordings are read, and what is said about broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from thunder_server.simulation.jsonlines import TraceError
from thunder_server.simulation.workload import Gap, Session, Skipped, Trace, load, recorded


def request(**fields: Any) -> dict[str, Any]:
    return {"t": 0.0, "in": 640, "out": 20, "hash_ids": list(range(10)), "input_types": ["text"]} | fields


def session(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "a", "models": ["m"], "tool_tokens": 60, "system_tokens": 4, "requests": requests} | fields


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_sessions(*sessions: object) -> Trace:
        path = tmp_path / "trace.jsonl"
        path.write_text("\n".join(json.dumps(one) for one in sessions) + "\n")
        return load(path)

    return read_sessions


class TestPackaged:
    trace = recorded()

    def test_holds_enough_sessions_of_ordinary_shape(self) -> None:
        assert len(self.trace.sessions) == 96
        assert len({one.id for one in self.trace.sessions}) == 96
        assert self.trace.skipped == {Skipped.EMPTY_OUTPUT: 2}
        for one in self.trace.sessions:
            assert len(one.turns) >= 5
            assert one.turns[0].gap is Gap.START
            for turn in one.turns:
                assert turn.output_tokens > 0
                assert 0 <= turn.shared_tokens <= turn.prompt_tokens
                assert one.system_tokens <= turn.prompt_tokens

    def test_contexts_mostly_grow(self) -> None:
        turns = [turn for one in self.trace.sessions for turn in one.turns[1:]]
        reused = sum(turn.shared_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)
        assert reused > 0.9

    def test_has_sub_agents(self) -> None:
        children = [child for one in self.trace.sessions for turn in one.turns for child in turn.children]
        assert len(children) == 10
        assert all(child.turns for child in children)

    def test_names_its_source(self) -> None:
        import thunder_server.simulation

        (folder,) = thunder_server.simulation.__path__
        notice = (Path(folder) / "data" / "README.md").read_text()
        assert "callanjfox/kv-cache-tester" in notice
        assert "Apache License, Version 2.0" in notice


class TestReading:
    def test_shares_whole_blocks_with_the_previous_prompt(self, read: Any) -> None:
        turns = (
            read(session(request(), request(t=9, **{"in": 700}), request(t=20, hash_ids=[*range(4), 99])))
            .sessions[0]
            .turns
        )
        assert [turn.shared_tokens for turn in turns] == [0, 640, 256]

    def test_knows_shared_in_place_of_block_ids(self, read: Any) -> None:
        one, two = request(shared=0), request(t=5, shared=600)
        del one["hash_ids"], two["hash_ids"]
        assert [turn.shared_tokens for turn in read(session(one, two)).sessions[0].turns] == [0, 600]

    def test_takes_gaps_as_given_or_from_the_times(self, read: Any) -> None:
        turns = (
            read(
                session(
                    request(api_time=2.0),
                    request(t=10, think_time=3.5, input_types=["tool_result"], api_time=1.0),
                    request(t=31),
                )
            )
            .sessions[0]
            .turns
        )
        assert [(turn.gap_s, turn.gap) for turn in turns] == [
            (0.0, Gap.START),
            (3.5, Gap.TOOL),
            (20.0, Gap.HUMAN),
        ]

    def test_sub_agents_belong_to_the_turn_that_waits_for_them(self, read: Any) -> None:
        child = {"type": "subagent", "agent_id": "x", "t": 1, "duration_ms": 4000, "requests": [request()]}
        parent = read(session(request(), child, request(t=9, think_time=6.0))).sessions[0]
        (only,) = parent.turns[1].children
        assert (only.id, only.model, parent.turns[1].gap_s, parent.turns[1].gap) == (
            "a.x",
            "m",
            2.0,
            Gap.TOOL,
        )

    def test_counts_what_it_leaves_out(self, read: Any) -> None:
        trace = read(
            session(request(), request(**{"in": 0, "hash_ids": []}), request(out=0)),
            session(id="b"),
            session(request(out=0), id="c"),
        )
        assert [one.id for one in trace.sessions] == ["a"]
        assert trace.skipped == {
            Skipped.EMPTY_PROMPT: 1,
            Skipped.EMPTY_OUTPUT: 2,
            Skipped.EMPTY_SESSION: 2,
        }

    def test_counts_sub_agents_that_nobody_waits_for(self, read: Any) -> None:
        child = {"type": "subagent", "requests": [request()]}
        trace = read(session(child, child, request(), request(think_time=1.0), child))
        assert [turn.children for turn in trace.sessions[0].turns] == [(), ()]
        assert trace.skipped == {Skipped.NO_GAP: 3}

    def test_what_comes_after_a_turn_left_out_shares_with_the_one_before_it(self, read: Any) -> None:
        turns = read(session(request(), request(out=0, hash_ids=[77]), request())).sessions[0].turns
        assert [turn.shared_tokens for turn in turns] == [0, 640]

    def test_reads_gzip_and_skips_blank_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.gz"
        path.write_bytes(gzip.compress(f"\n{json.dumps(session(request()))}\n\n".encode()))
        assert len(load(path).sessions) == 1

    def test_a_window_starts_cold(self) -> None:
        whole: Session = max(recorded().sessions, key=lambda one: len(one.turns))
        part = whole.window(10, 5)
        assert [turn.prompt_tokens for turn in part.turns] == [
            turn.prompt_tokens for turn in whole.turns[10:15]
        ]
        assert (part.turns[0].gap, part.turns[0].shared_tokens) == (Gap.START, 0)
        assert part.turns[1:] == whole.turns[11:15]


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("broken", "complaint"),
        [
            (session(request(**{"in": None})), "line 2, request 0: 'in' is missing"),
            (session(request(**{"in": -1})), "line 2, request 0: 'in' is negative (-1)"),
            (session(request(**{"in": 1.5})), "'in' must be a whole number, not 1.5"),
            (session(request(out=True)), "'out' must be a whole number, not True"),
            (session(request(out="9")), "'out' must be a whole number, not '9'"),
            (session(request(t=-3.0)), "'t' is negative (-3.0)"),
            (session(request(t=float("nan"))), "'t' must be a number of seconds, not nan"),
            (session(request(), request(think_time=-1)), "request 1: 'think_time' is negative (-1)"),
            (session(request(), request(t=None)), "'think_time' is missing (or, in its place, 't')"),
            (session(request(t=5), request(t=4)), "request 1: 't' goes back in time (4.0 after 5.0)"),
            (session(request(hash_ids=None)), "'hash_ids' is missing (or, in its place, 'shared')"),
            (session(request(t=float("inf"))), "'t' is too large (inf)"),
            (session(request(t=10**400)), "'t' is too large (1000000"),
            (session(request(**{"in": 10**9})), "'in' is too large (1000000000)"),
            (session(request(), block_size=0), "'block_size' must be at least 1"),
            (session(request(), models=[7]), "'models' must be names, not 7"),
            (session(request(), models="m"), "'models' must be a list, not str"),
            (session(request(hash_ids=7)), "'hash_ids' must be a list, not int"),
            (session(request(shared=10)), "'shared' is 10, more than"),
            (session(7), "line 2, request 0: must be a JSON object, not int"),
            ({"id": "a"}, "line 2: 'requests' is missing"),
            ({"requests": []}, "line 2: 'id' is missing"),
            (session(id=""), "line 2: 'id' must be a non-empty text"),
            ([1], "line 2: must be a JSON object, not list"),
            (session(request(), id="first"), "line 2: id 'first' was used on line 1 already"),
            (
                session({"type": "subagent", "requests": [request(out=-1)]}),
                "line 2, request 0, request 0: 'out' is negative (-1)",
            ),
        ],
    )
    def test_are_refused_by_file_line_and_field(self, read: Any, broken: object, complaint: str) -> None:
        with pytest.raises(TraceError) as refused:
            read(session(request(), id="first"), broken)
        assert complaint in str(refused.value)
        assert "trace.jsonl, line 2" in str(refused.value)

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b'{"id": ', "line 1: is not JSON"),
            (b"[" * 100_000, "line 1: is not JSON"),
            (b'{"id": "a", "requests": [{"in": 1%s}]}' % (b"0" * 5000), "line 1: is not JSON: Exceeds"),
            (b"", "holds no session"),
            (b"\n \r\n", "holds no session"),
            (b"\xff\xfe\x00", "line 1: is not UTF-8 text"),
            (b"\n\n\xe9\n", "line 3: is not UTF-8 text"),
            (gzip.compress(b"{}", mtime=0)[:15], "line 1: cannot be read"),
            (gzip.compress(b"\n" * 100_000, mtime=0)[:-4], "line 100001: cannot be read: Compressed"),
            (b"\x1f\x8bnonsense, for sure", "line 1: cannot be read"),
        ],
    )
    def test_are_refused_whatever_they_hold(self, tmp_path: Path, content: bytes, complaint: str) -> None:
        path = tmp_path / "broken"
        path.write_bytes(content)
        with pytest.raises(TraceError, match="broken") as refused:
            load(path)
        assert complaint in str(refused.value)

    def test_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="no-such: cannot be read: No such file"):
            load(tmp_path / "no-such")

    def test_windows_line_ends_and_a_byte_order_mark_are_no_harm(self, tmp_path: Path) -> None:
        path = tmp_path / "windows.jsonl"
        lines = [json.dumps(session(request(), id=name)) for name in ("a", "b")]
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, ""]).encode())
        assert [one.id for one in load(path).sessions] == ["a", "b"]

    def test_says_what_was_left_out_when_nothing_is_left(self, read: Any) -> None:
        with pytest.raises(
            TraceError, match=r"holds no session .*left out: 1 × session without turns, 1 × turn"
        ):
            read(session(request(out=0)))
