"""A framework's process: one for all tests of a module, or a fresh one in an environment of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..conftest import pointed
from ..harness.engine import Engine
from ..harness.lanes import Lane
from ..harness.server import ThunderServer
from .session import Session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # one process for all of a module


@pytest.fixture(scope="module")
def _session(
    request: pytest.FixtureRequest, _server: ThunderServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Session]:
    lane = pointed(_lane(request, tmp_path_factory), _server.v1, THUNDER_BASE_URL=_server.url)
    session = Session(lane, request.module.AGENT, lane.home / "log")
    yield session
    session.close()


@pytest.fixture
def agent(_session: Session, engine: Engine, server: ThunderServer) -> Session:
    """The module's ``AGENT``, in front of the server."""
    return _session


@pytest.fixture
def another(
    request: pytest.FixtureRequest, server: ThunderServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Session]]:
    """``another(base_url, **environ)``: the module's ``AGENT`` once more, in an environment of its own."""
    with ExitStack() as stack:

        def start(base_url: str, **environ: str) -> Session:
            lane = pointed(_lane(request, tmp_path_factory), base_url, **environ)
            session = Session(lane, request.module.AGENT, lane.home / "log")
            stack.callback(session.close)
            return session

        yield start


def _lane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lane:
    return Lane(request.module.LANE, tmp_path_factory.mktemp("home")).require()
