"""What a poller notices, and how soon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends import poller as poller_module
from thunder_server.backends.poller import Poller
from thunder_server.core.events import BackendReported
from thunder_server.upstream import make_session

from .fake_engine import FakeEngine, Reply, Seen


class Watched:
    """A poller under a test's own clock, and what it reported."""

    def __init__(self, spec: BackendSpec, every_s: float) -> None:
        self.reports: list[BackendReported] = []
        self.ahead = 0.0
        self._news = asyncio.Event()
        self.poller = Poller(spec, self._report, self.now, every_s=every_s)

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    def _report(self, report: BackendReported) -> None:
        self.reports.append(report)
        self._news.set()

    async def until(self, holds: Callable[[BackendReported], object]) -> BackendReported:
        async with asyncio.timeout(5.0):
            while not self.reports or not holds(self.reports[-1]):
                self._news.clear()
                await self._news.wait()
        return self.reports[-1]


@asynccontextmanager
async def watch(url: str, engine: str = "vllm", every_s: float = 0.01) -> AsyncGenerator[Watched]:
    watched = Watched(BackendSpec.model_validate({"url": url, "engine": engine}), every_s)
    async with make_session() as http:
        watched.poller.start(http)
        try:
            yield watched
        finally:
            await watched.poller.stop()


async def hangs(seen: Seen, reply: Reply) -> None:
    await asyncio.Event().wait()


async def test_the_first_report_is_complete() -> None:
    async with FakeEngine(models=("a", "b")) as engine, watch(engine.url) as watched:
        first = await watched.until(lambda report: True)
        assert (first.healthy, first.capacity_tokens, first.models) == (True, 16384, frozenset({"a", "b"}))
        assert (first.running, first.waiting, first.used_tokens) == (0, 0, 0)


async def test_a_backend_that_is_not_there_yet(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine:
        port = engine.port
        await engine.stop()
        async with watch(f"http://127.0.0.1:{port}") as watched:
            assert not (await watched.until(lambda report: True)).healthy
            assert caplog.text.count("nothing healthy at backend") == 1
            await engine.start(port)
            assert (await watched.until(lambda report: report.healthy)).capacity_tokens == 16384


async def test_a_refused_connection_is_death_at_once() -> None:
    async with FakeEngine() as engine, watch(engine.url) as watched:
        await watched.until(lambda report: report.healthy)
        await engine.stop()
        dead = await watched.until(lambda report: not report.healthy)
        assert (dead.capacity_tokens, dead.used_tokens) == (None, None)


async def test_silence_is_death_after_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller_module, "_ANSWER_S", 0.02)
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def silent(seen: Seen, reply: Reply) -> None:
        asked.put_nowait(None)
        await asyncio.Event().wait()

    async with FakeEngine() as engine, watch(engine.url) as watched:
        await watched.until(lambda report: report.healthy)
        engine.pages["/health"] = silent
        watched.ahead += 2.0
        for _ in range(3):  # asked again at once, and again
            async with asyncio.timeout(5.0):
                await asked.get()
        assert watched.poller.healthy
        assert watched.poller.failing_since is not None
        watched.ahead += 2.0
        await watched.until(lambda report: not report.healthy)


async def test_an_engine_that_says_it_is_broken_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(seen: Seen, reply: Reply) -> None:
        await reply.body(b"EngineDeadError", 503)

    async with FakeEngine() as engine, watch(engine.url) as watched:
        await watched.until(lambda report: report.healthy)
        engine.pages["/health"] = broken
        watched.ahead += 4.0
        await watched.until(lambda report: not report.healthy)


async def test_one_missed_page_does_not_forget_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller_module, "_ANSWER_S", 0.02)
    async with FakeEngine() as engine, watch(engine.url) as watched:
        await watched.until(lambda report: report.healthy)
        engine.pages["/metrics"] = hangs
        count = len(watched.reports)
        await watched.until(lambda report: len(watched.reports) >= count + 2)
        assert watched.reports[-1].capacity_tokens == 16384
        watched.ahead += 6.0
        unread = await watched.until(lambda report: report.capacity_tokens is None)
        assert unread.healthy


async def test_hit_rate_is_of_late() -> None:
    def page(hits: int, queries: int) -> str:
        return f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {queries}\n"

    async with FakeEngine() as engine:
        engine.pages["/metrics"] = page(0, 1000)
        async with watch(engine.url) as watched:
            await watched.until(lambda report: report.hit_rate == 0.0)
            engine.pages["/metrics"] = page(75, 1100)
            await watched.until(lambda report: report.hit_rate == 0.75)
            engine.pages["/metrics"] = page(5, 10)  # it restarted
            await watched.until(lambda report: report.hit_rate == 0.5)
            engine.pages["/metrics"] = page(0, 0)
            await watched.until(lambda report: report.hit_rate is None)


async def test_any_openai_server() -> None:
    async with FakeEngine(models=("gpt",)) as engine, watch(engine.url, "openai") as watched:
        report = await watched.until(lambda report: report.healthy)
        assert (report.capacity_tokens, report.models) == (None, frozenset({"gpt"}))
        engine.pages["/v1/models"] = hidden
        assert engine.pages["/health"] == ""
        watched.ahead += 6.0
        await watched.until(lambda report: report.healthy and report.models is None)


async def hidden(seen: Seen, reply: Reply) -> None:
    await reply.body(b"", 404)


@pytest.mark.parametrize(
    "listed", ["", "[]", "5", '{"data": 5}', '{"data": [5]}', '{"data": [{"id": 5}, {}]}', "[" * 100_000]
)
async def test_a_model_list_that_is_none(listed: str) -> None:
    async with FakeEngine() as engine:
        engine.pages["/v1/models"] = listed
        async with watch(engine.url) as watched:
            report = await watched.until(lambda report: report.healthy)
            assert not report.models


async def test_asking_for_models_at_the_same_time_is_one_request() -> None:
    async with FakeEngine() as engine, watch(engine.url, every_s=60.0) as watched:
        await watched.until(lambda report: report.healthy)
        asked = 0

        async def count(seen: Seen, reply: Reply) -> None:
            nonlocal asked
            asked += 1
            await reply.body(json.dumps({"data": [{"id": "new"}]}).encode())

        engine.pages["/v1/models"] = count
        await asyncio.gather(*(watched.poller.refresh_models() for _ in range(5)))
        assert (asked, set(watched.poller.models or ())) == (1, {"new"})


async def test_a_fault_in_a_look_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine:
        watched = Watched(BackendSpec(url=engine.url), 0.01)
        report, faults = watched.poller._report, iter([ZeroDivisionError])

        def faulty(event: BackendReported) -> None:
            for fault in faults:
                raise fault
            report(event)

        watched.poller._report = faulty
        async with make_session() as http:
            watched.poller.start(http)
            await watched.until(lambda report: report.healthy)
            await watched.poller.stop()
        assert "ZeroDivisionError" in caplog.text
