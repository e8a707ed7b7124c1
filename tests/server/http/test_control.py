"""The control plane over a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from yarl import URL

from .fake_engine import FakeEngine, Reply, Seen, plain_answer
from .whole import BACKENDS, CHAT, EMITTER, EVENTS, PROGRAMS, whole

FIELDS = {
    "id",
    "name",
    "group",
    "parent_id",
    "priority",
    "tags",
    "metadata",
    "status",
    "phase",
    "expects_call",
    "closing",
    "outcome",
    "reason",
    "generation",
    "backend",
    "tokens",
    "calls",
    "wait",
    "acting",
    "resources",
    "lease_s",
    "lease_left_s",
    "opened_at",
}


def event(program_id: str, seq: int, type_: str, **fields: Any) -> dict[str, Any]:
    return {"program_id": program_id, "seq": seq, "at": float(seq), "type": type_, **fields}


class Held:
    """An engine's answers, held back until they are let go."""

    def __init__(self, engine: FakeEngine) -> None:
        self.go = asyncio.Event()
        engine.answer = self._answer

    async def _answer(self, seen: Seen, reply: Reply) -> None:
        await self.go.wait()
        await plain_answer(seen, reply)


# --- programs ------------------------------------------------------------------------------------------


async def test_put_opens_then_merges_what_is_given() -> None:
    async with whole() as server:
        body = {"name": "fix bug", "group": "g", "priority": 3, "tags": ["a"], "metadata": {"x": [1, None]}}
        status, program = await server.ask("PUT", f"{PROGRAMS}/p", body)
        assert status == 201
        assert set(program) == FIELDS
        assert {key: program[key] for key in body} == body
        assert (program["status"], program["phase"], program["generation"]) == ("active", "acting", 1)
        assert (program["lease_s"], program["outcome"], program["parent_id"]) == (60.0, None, None)
        assert abs(program["opened_at"] - server.runtime.unix(server.runtime.now())) < 60

        status, merged = await server.ask(
            "PUT", f"{PROGRAMS}/p", {"priority": -1, "lease_s": 5, "name": None}
        )
        assert status == 200
        assert (merged["priority"], merged["name"], merged["lease_s"]) == (-1, "fix bug", 5.0)
        assert 4 < merged["lease_left_s"] <= 5
        assert merged["opened_at"] == program["opened_at"]


async def test_put_needs_no_body_and_no_content_type() -> None:
    async with whole() as server:
        assert (await server.ask("PUT", f"{PROGRAMS}/p"))[0] == 201
        assert (await server.ask("PUT", f"{PROGRAMS}/q", b'{"name": "n"}'))[1]["name"] == "n"


async def test_put_after_termination_opens_the_next_generation() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p", {"name": "old"})
        await server.ask("DELETE", f"{PROGRAMS}/p")
        status, program = await server.ask("PUT", f"{PROGRAMS}/p")
        assert (status, program["generation"], program["status"]) == (201, 2, "active")


async def test_delete_is_idempotent_and_says_how_it_ended() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p")
        for _ in range(2):
            status, program = await server.ask("DELETE", f"{PROGRAMS}/p", params={"outcome": "error"})
            assert (status, program["status"], program["outcome"]) == (200, "terminated", "error")
        status, program = await server.ask("DELETE", f"{PROGRAMS}/never")
        assert (status, program["status"], program["outcome"]) == (200, "terminated", None)
        assert set(program) == FIELDS
        assert (await server.ask("GET", f"{PROGRAMS}/never"))[0] == 404


async def test_delete_of_an_earlier_generation_is_ignored() -> None:
    async with whole() as server:
        for _ in range(2):
            await server.ask("PUT", f"{PROGRAMS}/p")
            await server.ask("DELETE", f"{PROGRAMS}/p", params={"generation": "1"})
        assert (await server.program("p"))["status"] == "active"
        status, program = await server.ask("DELETE", f"{PROGRAMS}/p", params={"generation": "2"})
        assert (status, program["status"]) == (200, "terminated")


async def test_a_successful_close_lets_calls_finish() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        held = Held(engine)
        call = server.call("p")
        await engine.arrived()
        status, program = await server.ask("DELETE", f"{PROGRAMS}/p")
        assert (status, program["status"], program["closing"]) == (200, "active", True)
        held.go.set()
        assert (await call)[0] == 200
        program = await server.program("p")
        assert (program["status"], program["closing"], program["outcome"]) == ("terminated", False, "success")


async def test_a_drop_cancels_calls_at_once() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        Held(engine)
        call = server.call("p")
        seen = await engine.arrived()
        status, program = await server.ask("DELETE", f"{PROGRAMS}/p", params={"outcome": "dropped"})
        assert (status, program["status"], program["outcome"]) == (200, "terminated", "dropped")
        status, refusal = await call
        assert (status, refusal["error"]["code"]) == (409, "program_terminated")
        await asyncio.wait_for(seen.gone.wait(), 2)


async def test_lists_are_filtered() -> None:
    async with whole() as server:
        for program_id, group in (("a", "g"), ("b", "g"), ("c", "h")):
            await server.ask("PUT", f"{PROGRAMS}/{program_id}", {"group": group})
        await server.ask("DELETE", f"{PROGRAMS}/b")

        async def ids(**params: str) -> list[str]:
            status, answer = await server.ask("GET", PROGRAMS, params=params)
            assert status == 200
            return [program["id"] for program in answer["programs"]]

        assert await ids() == ["a", "b", "c"]
        assert await ids(status="active") == ["a", "c"]
        assert await ids(status="terminated", group="g") == ["b"]
        assert await ids(group="none") == []
        assert await ids(status="") == ["a", "b", "c"]


async def test_why_speaks_plainly() -> None:
    async with FakeEngine(blocks=11) as engine, whole([engine], policy="cap", cap=1) as server:
        await server.call("first")
        waiting = server.call("second")
        await server.until(lambda: "second" in server.runtime.scheduler.programs)
        status, why = await server.ask("GET", f"{PROGRAMS}/second/why")
        assert status == 200
        assert set(why) == {
            "status",
            "reason",
            "waiting_for",
            "queue_position",
            "needed_tokens",
            "free_tokens",
            "decisions",
        }
        assert why["status"] == "paused"
        assert "slot" in why["waiting_for"]
        assert isinstance(why["queue_position"], int)
        assert abs(why["decisions"][-1]["at"] - server.runtime.unix(server.runtime.now())) < 60
        await server.ask("DELETE", f"{PROGRAMS}/first")
        assert (await waiting)[0] == 200
        assert (await server.ask("GET", f"{PROGRAMS}/nobody/why"))[0] == 404


# --- events --------------------------------------------------------------------------------------------


async def test_events_open_programs_and_show_their_tools() -> None:
    async with whole() as server:
        answer = await server.report(
            event("p", 1, "acting.started", call_id="c1", tool="bash", expected_s=30),
            event("q", 1, "heartbeat"),
            event("p", 2, "resource.declared", kind="container", ref="box", keep=True),
        )
        assert answer == {
            "programs": {
                "p": {"status": "active", "phase": "acting", "generation": 1, "outcome": None},
                "q": {"status": "active", "phase": "acting", "generation": 1, "outcome": None},
            },
            "errors": [],
        }
        program = await server.program("p")
        (block,) = program["acting"]
        assert (block["call_id"], block["tool"], block["expected_s"]) == ("c1", "bash", 30.0)
        assert block["since_s"] >= 0
        (resource,) = program["resources"]
        assert (resource["kind"], resource["ref"], resource["keep"]) == ("container", "box", True)
        assert (program["lease_s"], program["expects_call"]) == (600.0, False)

        await server.report(event("p", 3, "acting.finished", call_id="c1", ok=True))
        program = await server.program("p")
        assert (program["acting"], program["expects_call"]) == ([], True)


async def test_repeated_and_older_events_are_ignored() -> None:
    async with whole() as server:
        started = event("p", 5, "acting.started", call_id="c1", tool="bash")
        await server.report(started)
        await server.report(event("p", 6, "acting.finished", call_id="c1", ok=True))
        for repeated in (started, event("p", 4, "acting.started", call_id="c0", tool="older")):
            answer = await server.report(repeated)
            assert answer["errors"] == []
        assert (await server.program("p"))["acting"] == []
        # Another process counts for itself.
        other = {"emitter": "f" * 32, "events": [event("p", 1, "acting.started", call_id="c2", tool="other")]}
        await server.ask("POST", EVENTS, other)
        assert [block["tool"] for block in (await server.program("p"))["acting"]] == ["other"]


async def test_events_for_a_terminated_program_are_ignored_but_answered() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p")
        await server.ask("DELETE", f"{PROGRAMS}/p", params={"outcome": "error"})
        answer = await server.report(event("p", 1, "acting.started", call_id="c", tool="late"))
        assert answer["programs"]["p"] == {
            "status": "terminated",
            "phase": "acting",
            "generation": 1,
            "outcome": "error",
        }
        assert (await server.program("p"))["acting"] == []


async def test_a_malformed_event_does_not_stop_the_others() -> None:
    async with whole() as server:
        answer = await server.report(
            event("p", 1, "heartbeat"),
            {"type": "heartbeat"},
            event("a b", 1, "heartbeat"),
            event("q", 1, "heartbeat"),
            event("r", -1, "heartbeat"),
            "no event",  # type: ignore[arg-type]
        )
        assert set(answer["programs"]) == {"p", "q"}
        assert [error["index"] for error in answer["errors"]] == [1, 2, 4, 5]
        assert answer["errors"][1]["message"].startswith("program_id: 'a b' is no id")
        assert set(server.runtime.scheduler.programs) == {"p", "q"}


async def test_a_large_batch_lets_others_in_between() -> None:
    async with whole() as server:
        batch = [event(f"p{index % 100}", index, "heartbeat") for index in range(5000)]
        answer = await server.report(*batch)
        assert len(answer["programs"]) == 100


# --- bad input -----------------------------------------------------------------------------------------

BAD_IDS = [
    "a%20b",
    "%2e%2e",
    "%2E",
    "a%2Fb",
    "%ff",
    "%00",
    "%C3%A9",
    "x" * 201,
    "a%0d%0aX-Evil:1",
    "%ED%A0%80",
    "a,b",
]


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_ids_outside_the_grammar_are_refused_everywhere(bad: str) -> None:

    async with whole() as server:
        for method, suffix in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/why")):
            address = URL(f"{server.url}{PROGRAMS}/{bad}{suffix}", encoded=True)
            async with server.http.request(method, address) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"], error["param"]) == (400, "invalid_request", "id")
        assert not server.runtime.scheduler.programs


async def test_ids_may_come_percent_encoded() -> None:

    async with whole() as server:
        address = URL(f"{server.url}{PROGRAMS}/a%40b%3Ac", encoded=True)
        async with server.http.put(address) as answer:
            assert (await answer.json())["id"] == "a@b:c"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", f"{PROGRAMS}/p"), ("POST", EVENTS), ("POST", BACKENDS), ("POST", "/programs/release")],
)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"lease_s": NaN}',
        b'{"lease_s": 1e999}',
        b'{"priority": ' + b"9" * 5000 + b"}",
        b'{"metadata": ' + b"[" * 200_000 + b"}",
        b'{"metadata": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}",
        b'{"name": "\\udc00"}',
    ],
    ids=lambda body: body[:24],
)
async def test_malformed_bodies_are_refused_and_change_nothing(method: str, path: str, body: bytes) -> None:
    async with whole() as server:
        status, answer = await server.ask(method, path, body)
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
        assert not server.runtime.scheduler.programs
        assert not server.runtime.backends


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "emitter"),
        ({"emitter": "a b", "events": []}, "emitter"),
        ({"emitter": EMITTER}, "events"),
        ({"emitter": EMITTER, "events": {}}, "events"),
        ({"emitter": 5, "events": []}, "emitter"),
    ],
)
async def test_an_envelope_that_does_not_fit(body: dict, param: str) -> None:
    async with whole() as server:
        status, answer = await server.ask("POST", EVENTS, body)
        assert (status, answer["error"]["param"]) == (400, param)


async def test_bad_queries_are_refused() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p")
        for method, path, params in (
            ("DELETE", f"{PROGRAMS}/p", {"outcome": "finished"}),
            ("DELETE", f"{PROGRAMS}/p", {"outcome": "lease_expired"}),
            ("DELETE", f"{PROGRAMS}/p", {"generation": "one"}),
            ("DELETE", f"{PROGRAMS}/p", {"generation": "-1"}),
            ("DELETE", f"{PROGRAMS}/p", {"generation": "²"}),
            ("DELETE", f"{PROGRAMS}/p", {"generation": "9" * 99}),
            ("GET", PROGRAMS, {"status": "asleep"}),
        ):
            status, answer = await server.ask(method, path, params=params)
            (name,) = params
            assert (status, answer["error"]["param"]) == (400, name)
        assert (await server.program("p"))["status"] == "active"


async def test_too_large_bodies_are_refused_with_or_without_a_length() -> None:
    async with whole(max_body=1000) as server:

        async def chunked() -> Any:
            for _ in range(20):
                yield b" " * 100

        for body in (b" " * 1001, chunked()):
            async with server.http.put(f"{server.url}{PROGRAMS}/p", data=body) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


async def test_compressed_control_bodies_are_refused() -> None:
    async with whole() as server:
        status, answer = await server.ask(
            "PUT", f"{PROGRAMS}/p", b"\x1f\x8b", headers={"Content-Encoding": "gzip"}
        )
        assert (status, answer["error"]["code"]) == (415, "unsupported_encoding")


async def test_a_program_is_not_its_own_parent() -> None:
    async with whole() as server:
        status, answer = await server.ask("PUT", f"{PROGRAMS}/p", {"parent_id": "p"})
        assert (status, answer["error"]["param"]) == (400, "parent_id")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PATCH", f"{PROGRAMS}/p", 405),
        ("POST", PROGRAMS, 405),
        ("GET", EVENTS, 405),
        ("PUT", BACKENDS, 405),
        ("GET", f"{BACKENDS}/h:1/drain", 405),
        ("POST", "/thunder/v1/stream", 405),
        ("POST", "/metrics", 405),
        ("GET", "/programs/release", 405),
        ("DELETE", "/healthz", 405),
        ("GET", "/thunder/v1", 404),
        ("GET", "/thunder/v1/", 404),
        ("GET", "/thunder/v2/programs", 404),
        ("GET", f"{PROGRAMS}/p/whence", 404),
        ("GET", "/nothing", 404),
        ("GET", "/", 404),
    ],
)
async def test_unknown_paths_and_wrong_methods_are_said_in_shape(method: str, path: str, status: int) -> None:
    async with whole() as server, server.http.request(method, server.url + path) as answer:
        error = (await answer.json())["error"]
        assert answer.status == status
        assert set(error) == {"message", "type", "code", "param"}
        assert ("Allow" in answer.headers) == (status == 405)


# --- keys ----------------------------------------------------------------------------------------------


async def test_with_keys_nobody_else_gets_in() -> None:
    async with FakeEngine() as engine, whole([engine], api_key=("s3cret",)) as server:
        await server.ask("PUT", f"{PROGRAMS}/p", headers={"Authorization": "Bearer s3cret"})
        for method, path in (
            ("PUT", f"{PROGRAMS}/p"),
            ("GET", f"{PROGRAMS}/p"),
            ("DELETE", f"{PROGRAMS}/p"),
            ("GET", f"{PROGRAMS}/p/why"),
            ("GET", PROGRAMS),
            ("POST", EVENTS),
            ("GET", BACKENDS),
            ("POST", BACKENDS),
            ("POST", f"{BACKENDS}/{engine.id}/drain"),
            ("DELETE", f"{BACKENDS}/{engine.id}"),
            ("GET", "/thunder/v1/stream"),
            ("GET", "/metrics"),
            ("GET", "/programs"),
            ("POST", "/programs/release"),
            ("GET", "/v1/models"),
            ("POST", CHAT),
        ):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "S3CRET"}):
                async with server.http.request(method, server.url + path, headers=headers) as answer:
                    assert answer.status == 401, (method, path)
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
        for path in ("/healthz", "/readyz", "/health"):
            async with server.http.get(server.url + path) as answer:
                assert answer.status == 200
        headers = {"x-api-key": "s3cret"}
        assert (await server.ask("GET", f"{PROGRAMS}/p", headers=headers))[1]["status"] == "active"
        assert engine.id in server.runtime.backends
        assert engine.seen == []


async def test_open_metrics_need_no_key() -> None:
    async with (
        whole(api_key=("k",), open_metrics=True) as server,
        server.http.get(server.url + "/metrics") as answer,
    ):
        assert answer.status == 200


# --- backends ------------------------------------------------------------------------------------------


async def test_backends_come_and_go_at_run_time() -> None:
    async with FakeEngine() as engine, whole() as server:
        assert (await server.ask("GET", BACKENDS))[1] == {"backends": []}
        status, backend = await server.ask("POST", BACKENDS, {"url": engine.url + "/v1/", "weight": 2})
        assert status == 201
        assert set(backend) == {
            "id",
            "url",
            "engine",
            "healthy",
            "draining",
            "models",
            "capacity_tokens",
            "used_tokens",
            "active_programs",
            "running",
            "waiting",
            "hit_rate",
        }
        assert (backend["id"], backend["url"], backend["engine"]) == (engine.id, engine.url, "vllm")
        assert (await server.ask("POST", BACKENDS, {"url": engine.url}))[0] == 200
        await server.until(lambda: server.runtime.scheduler.backends[engine.id].models)
        (backend,) = (await server.ask("GET", BACKENDS))[1]["backends"]
        assert (backend["healthy"], backend["capacity_tokens"], backend["models"]) == (True, 16384, ["m"])
        assert (await server.call("p"))[0] == 200
        status, gone = await server.ask("DELETE", f"{BACKENDS}/{engine.id}")
        assert (status, gone["id"]) == (200, engine.id)
        assert (await server.ask("GET", BACKENDS))[1] == {"backends": []}


async def test_a_taken_address_is_refused() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        status, answer = await server.ask("POST", BACKENDS, {"url": engine.url + "/team"})
        assert (status, answer["error"]["param"]) == (400, "url")
        assert len(server.runtime.backends) == 1


async def test_a_drained_backend_finishes_what_runs_and_gets_nothing_new() -> None:
    async with FakeEngine() as old, FakeEngine() as new, whole([old]) as server:
        held = Held(old)
        running = server.call("p")
        await old.arrived()
        await server.ask("POST", BACKENDS, {"url": new.url})
        await server.until(lambda: len(server.runtime.healthy_backends) == 2)
        status, backend = await server.ask("POST", f"{BACKENDS}/{old.id}/drain", {"timeout_s": 60})
        assert (status, backend["draining"]) == (202, True)
        assert (await server.call("q"))[0] == 200
        held.go.set()
        assert (await running)[0] == 200
        assert (await server.call("p"))[0] == 200  # bound ones move at their next call
        assert (len(old.seen), len(new.seen)) == (1, 2)


async def test_a_removed_backend_is_cut() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        Held(engine)
        running = server.call("p")
        seen = await engine.arrived()
        await server.ask("DELETE", f"{BACKENDS}/{engine.id}")
        assert (await running)[0] == 502
        await asyncio.wait_for(seen.gone.wait(), 2)


async def test_unknown_backends_are_named_with_those_there_are() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        for method, path in (("POST", f"{BACKENDS}/h:1/drain"), ("DELETE", f"{BACKENDS}/h:1")):
            status, answer = await server.ask(method, path)
            assert (status, answer["error"]["code"]) == (404, "backend_not_found")
            assert engine.id in answer["error"]["message"]
        status, answer = await server.ask("POST", f"{BACKENDS}/{engine.id}/drain", {"timeout_s": -1})
        assert (status, answer["error"]["param"]) == (400, "timeout_s")
        assert not server.runtime.scheduler.backends[engine.id].draining


# --- leases --------------------------------------------------------------------------------------------


async def test_a_silent_program_ends_with_its_lease() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p", {"lease_s": 0.2})
        await server.until(lambda: server.runtime.scheduler.programs["p"].status == "terminated")
        assert (await server.program("p"))["outcome"] == "lease_expired"


async def test_what_is_shown_can_be_parsed_strictly() -> None:
    """Whatever clients put into metadata comes out as valid JSON."""
    async with whole() as server:
        text = '{"metadata": {"k\\u0000": ["\\u2028", 1e300, -0.0, 123456789012345678901234567890]}}'
        await server.ask("PUT", f"{PROGRAMS}/p", text.encode())
        async with server.http.get(f"{server.url}{PROGRAMS}") as answer:
            shown = json.loads(await answer.text(), parse_constant=pytest.fail)
        assert shown["programs"][0]["metadata"] == json.loads(text)["metadata"]
