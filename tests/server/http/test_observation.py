"""Health, metrics and the stream of transitions, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from thunder_server.app import make_app, start_server
from thunder_server.auth import Keys
from thunder_server.core.policies import make_policy
from thunder_server.core.scheduler import Scheduler
from thunder_server.observation import Observation
from thunder_server.runtime import Runtime

from .fake_engine import FakeEngine
from .whole import PROGRAMS, Whole, whole

STREAM = "/thunder/v1/stream"


class Listener:
    """What one connection to the stream has been told."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> dict[str, Any]:
        """The next entry; comments are passed over."""
        async with asyncio.timeout(5):
            while line := await self.answer.content.readline():
                if line.startswith(b"data: "):
                    return json.loads(line.removeprefix(b"data: "))
        raise EOFError

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All entries up to the next of that type."""
        told = [await self.next()]
        while told[-1]["type"] != kind:
            told.append(await self.next())
        return told


@asynccontextmanager
async def listening(server: Whole, last_id: int | None = None) -> AsyncGenerator[Listener]:
    headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
    async with server.http.get(server.url + STREAM, headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        assert (await answer.content.readline()).startswith(b":")
        yield Listener(answer)


# --- health --------------------------------------------------------------------------------------------


async def test_health_tells_the_process_from_its_backends() -> None:
    async with FakeEngine() as engine, whole() as server:
        assert await server.ask("GET", "/healthz") == (200, {"status": "ok"})
        async with server.http.get(server.url + "/readyz") as answer:
            assert (answer.status, (await answer.json())["healthy_backends"]) == (503, 0)
        await server.ask("POST", "/thunder/v1/backends", {"url": engine.url})
        await server.until(lambda: server.runtime.healthy_backends)
        assert (await server.ask("GET", "/readyz"))[0] == 200
        await engine.stop()
        await server.until(lambda: not server.runtime.healthy_backends, timeout=10)
        async with server.http.get(server.url + "/readyz") as answer:
            assert answer.status == 503


# --- metrics -------------------------------------------------------------------------------------------


async def test_metrics_are_ours_and_name_no_program() -> None:
    async with FakeEngine() as engine, whole([engine]) as server:
        await server.call("secret-program")
        await server.ask("DELETE", f"{PROGRAMS}/secret-program")
        async with server.http.get(server.url + "/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            text = await answer.text()
        families = {family.name: family for family in read_text(text)}
        assert all(name.startswith("thunder_") for name in families)
        assert "secret-program" not in text

        def value(sample: str, **labels: str) -> float:
            return next(
                found.value
                for family in families.values()
                for found in family.samples
                if found.name == sample and found.labels == labels
            )

        assert value("thunder_calls_ended_total", end="completed") == 1
        assert value("thunder_programs_ended_total", outcome="success") == 1
        assert value("thunder_tokens_total", kind="prompt") == 100
        assert value("thunder_call_wait_seconds_count") == 1
        assert value("thunder_call_wait_seconds_bucket", le="+Inf") == 1
        assert value("thunder_backend_capacity_tokens", backend=engine.id) == 16384
        assert value("thunder_programs", status="terminated", phase="acting") == 1


async def test_metrics_speak_openmetrics_when_asked() -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with whole() as server, server.http.get(server.url + "/metrics", headers=accept) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert list(read_openmetrics(await answer.text()))


# --- the stream ----------------------------------------------------------------------------------------


async def test_every_transition_is_told_in_order() -> None:
    async with FakeEngine() as engine, whole([engine]) as server, listening(server) as listener:
        await server.call("p")
        await server.ask("DELETE", f"{PROGRAMS}/p")
        told = await listener.until("program.terminated")
        assert [entry["id"] for entry in told] == list(range(told[0]["id"], told[0]["id"] + len(told)))
        assert {entry["program_id"] for entry in told} == {"p"}
        kinds = [entry["type"] for entry in told]
        for kind in (
            "program.opened",
            "call.arrived",
            "call.dispatched",
            "call.finished",
            "program.terminated",
        ):
            assert kinds.count(kind) == 1
        phases = [entry["phase"] for entry in told if entry["type"] == "program.phase"]
        assert phases == ["reasoning", "acting"]
        now = server.runtime.unix(server.runtime.now())
        assert all(abs(entry["at"] - now) < 60 for entry in told)


async def test_a_listener_resumes_where_it_was() -> None:
    async with whole() as server:
        async with listening(server) as listener:
            await server.ask("PUT", f"{PROGRAMS}/first")
            seen = await listener.next()
        await server.ask("PUT", f"{PROGRAMS}/second")
        async with listening(server, seen["id"]) as listener:
            assert (await listener.next())["program_id"] == "second"
            await server.ask("PUT", f"{PROGRAMS}/third")
            assert (await listener.next())["program_id"] == "third"


async def test_a_listener_of_an_earlier_server_is_told_of_the_gap() -> None:
    async with whole() as server:
        await server.ask("PUT", f"{PROGRAMS}/p")
        async with listening(server, 7) as listener:
            gap, opened = await listener.next(), await listener.next()
            assert (gap["type"], gap["missed"], opened["program_id"]) == ("stream.gap", None, "p")


@pytest.mark.parametrize("last_id", ["x", "-1", "1.5", "9" * 19])
async def test_a_resume_point_that_is_none_is_refused(last_id: str) -> None:
    async with whole() as server:
        status, answer = await server.ask("GET", STREAM, headers={"Last-Event-ID": last_id})
        assert (status, answer["error"]["param"]) == (400, "Last-Event-ID")


async def test_a_listener_that_does_not_read_holds_up_nobody() -> None:
    async with whole() as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, deaf = await asyncio.open_connection(host, int(port), limit=1)
        deaf.write(f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await deaf.drain()
        async with listening(server) as listener:
            events = [
                {"program_id": f"p{index}", "seq": 1, "at": 1.0, "type": "heartbeat"} for index in range(5000)
            ]
            for _ in range(3):
                await server.report(*events)
            told = [await listener.next() for _ in range(5000)]
            assert len({entry["program_id"] for entry in told}) == 5000
        deaf.close()


async def test_a_stopping_server_ends_its_streams() -> None:
    async with aiohttp.ClientSession() as http:
        async with whole() as server:
            answer = await http.get(server.url + STREAM)
            await answer.content.readline()
        async with asyncio.timeout(5):
            await answer.read()


async def test_a_silent_stream_says_that_it_lives() -> None:
    runtime = Runtime(Scheduler(policy=make_policy("passthrough")))
    app = make_app([Observation(runtime, Keys([]), "passthrough", keep_alive_s=0.01)])
    async with start_server(app) as url, aiohttp.ClientSession() as http, http.get(url + STREAM) as answer:
        async with asyncio.timeout(5):
            while await answer.content.readline() != b": still here\n":
                pass
