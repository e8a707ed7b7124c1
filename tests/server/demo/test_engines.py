"""What the demo asks engines, against an emulated one, and what it says to those that are none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from thunder_server.demo import engines
from thunder_server.demo.fleet import DemoError
from thunder_server.demo.prompts import Sizes
from thunder_server.demo.story import Options, outline
from thunder_server.emulate import EmulatedServer, EngineSettings
from thunder_server.simulation.time_model import PRESETS


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    settings = EngineSettings(model="m", preset=PRESETS["cpu-small"], kv_tokens=64_000, speed=1000.0)
    async with EmulatedServer(settings, port=0) as server:
        yield server.url


@pytest.fixture
async def stranger() -> AsyncIterator[str]:
    """Something that speaks HTTP, and JSON, and is no engine."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"hello": "there"})

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_root_is_written_in_many_ways(suffix: str) -> None:
    assert engines.root(f"http://gpu:8000{suffix}") == "http://gpu:8000"


async def test_an_engine_is_asked_all_that_is_needed(engine: str) -> None:
    async with engines.session() as session:
        model, limit = await engines.read_model(session, f"{engine}/v1/")
        assert model == "m"
        assert limit
        before = await engines.read_cache_counts(session, [engine])
        sizes = await engines.measure_sizes(session, engine, model)
        after = await engines.read_cache_counts(session, [engine])
        assert await engines.read_memory(session, engine) == (64_000, 16)
    assert sizes == Sizes(per_word=1.0, per_message=9.0)
    assert before is not None
    assert after is not None
    assert after.since(before).queries > 1000


async def test_the_work_is_fitted_to_an_engine(engine: str) -> None:
    story = await outline(Options(backends=(engine,), agents=8))
    (_, scripts), (_, few) = story.chapters
    assert (story.engines.kv_tokens, story.engines.replicas) == (64_000, 1)
    assert len(scripts) == 8
    assert len(few) == 2
    assert max(script.largest_context for script in scripts) <= 8192  # what this engine takes
    assert 0 < story.shrunk < 0.2


async def test_emulated_engines_are_fitted_to_the_work() -> None:
    story = await outline(Options(working_set=1.25))
    ((title, scripts),) = story.chapters
    assert "1.2 ×" in title or "1.3 ×" in title
    assert len(scripts) == 48
    assert story.shrunk == 1.0


async def test_what_an_engine_says_is_told(engine: str) -> None:
    async with engines.session() as session:
        with pytest.raises(DemoError, match=r"answers a chat of 20 words by 404: .*nobody"):
            await engines.measure_sizes(session, engine, "nobody")


async def test_somebody_else_is_no_engine(stranger: str) -> None:
    async with engines.session() as session:
        with pytest.raises(DemoError, match="names no model"):
            await engines.read_model(session, stranger)
        with pytest.raises(DemoError, match="does not answer a chat with usage"):
            await engines.measure_sizes(session, stranger, "m")
        assert await engines.read_cache_counts(session, [stranger]) is None


async def test_nobody_is_no_engine_either() -> None:
    async with engines.session() as session:
        for asked in (
            engines.read_memory(session, "http://127.0.0.1:1"),
            engines.read_model(session, "http://127.0.0.1:1"),
        ):
            with pytest.raises(DemoError, match=r"http://127\.0\.0\.1:1.* does not answer"):
                await asked


async def test_a_key_for_the_engines_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-demo")
    async with engines.session() as session:
        assert session.headers["Authorization"] == "Bearer sk-demo"
