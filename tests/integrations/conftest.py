"""The adapters with the real frameworks. ``make test-integrations`` builds the lanes and runs these.

A test names its lane and what it shows::

    pytestmark = pytest.mark.lane("a")


    @pytest.mark.proves("litellm", "identity", "streaming")
    def test_…(lane, engine, server):
        lane.run(HERE / "agent.py")
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from ..docker_engine import IMAGE
from ..server.cli.harness import Background
from .harness.engine import MODEL, Engine
from .harness.lanes import Lane
from .harness.proofs import Ledger, proofs_of
from .harness.server import ThunderServer, thunder_serve

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(config.rootpath / "build" / "integrations.json"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = [name for mark in metafunc.definition.iter_markers("parametrize") for name in mark.args[0]]
    if "lane" in metafunc.fixturenames and "lane" not in named:
        marker = metafunc.definition.get_closest_marker("lane")
        assert marker, f"{metafunc.definition.nodeid} does not say its lane: pytest.mark.lane(…)"
        metafunc.parametrize("lane", marker.args, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.user_properties += proofs_of(item)


# --- the machinery, once per worker ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def background() -> Generator[Background]:
    background = Background()
    yield background
    background.close()


@pytest.fixture(scope="session")
def _engine(background: Background) -> Generator[Engine]:
    engine = Engine(background)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def _elsewhere(background: Background) -> Generator[Engine]:
    engine = Engine(background)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def _server(_engine: Engine) -> Generator[ThunderServer]:
    with thunder_serve(_engine.url) as server:
        yield server


# --- what a test takes ----------------------------------------------------------------------------------


@pytest.fixture
def engine(_engine: Engine) -> Engine:
    """The engine behind the server, as new."""
    _engine.reset()
    return _engine


@pytest.fixture
def elsewhere(_elsewhere: Engine) -> Engine:
    """An OpenAI-compatible host that is nobody of ours: nothing of ours may reach it."""
    _elsewhere.reset()
    return _elsewhere


@pytest.fixture
def server(_server: ThunderServer, engine: Engine) -> ThunderServer:
    """``thunder serve`` in front of the engine; what it told of before is forgotten."""
    _server.reset()
    return _server


@pytest.fixture
def dead_url() -> Generator[str]:
    """An address that refuses connections for as long as the test runs."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture
def lane(request: pytest.FixtureRequest, tmp_path: Path) -> Lane:
    """The environment that the test named, pointed at the server (where the test takes one)."""
    home = tmp_path / "home"
    home.mkdir()
    return Lane(request.param, home).require()


@pytest.fixture(scope="session")
def image(_docker: object) -> str:
    """An image with a shell, for tests that are marked ``docker``."""
    return IMAGE


@pytest.fixture
def through_server(lane: Lane, server: ThunderServer) -> Lane:
    """The lane with our server as the model's address."""
    return pointed(lane, server.v1, THUNDER_BASE_URL=server.url)


@pytest.fixture
def server_down(lane: Lane, engine: Engine, dead_url: str) -> Lane:
    """The lane with an engine that works and a server of ours that does not."""
    return pointed(lane, engine.url + "/v1", THUNDER_BASE_URL=dead_url)


@pytest.fixture
def disabled(lane: Lane, server: ThunderServer) -> Lane:
    """The lane with the SDK switched off, through our server all the same: it would see any trace of us."""
    return pointed(lane, server.v1, THUNDER_BASE_URL=server.url, THUNDER_DISABLED="1")


def pointed(lane: Lane, base_url: str, **environ: str) -> Lane:
    """The lane with this address for every client of openai's kind."""
    openai = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": "sk-test"}
    return Lane(lane.name, lane.home, {**openai, "MODEL": MODEL, **environ})
