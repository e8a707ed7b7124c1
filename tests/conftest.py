"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.docker_engine import Engine


def pytest_configure() -> None:
    # A shell that runs us in the background has us ignore interrupts, and so would every process we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _docker() -> Iterator[object]:
    # Some tests run again where this library is not installed.
    import docker

    from tests.docker_engine import make_image

    try:
        api = docker.APIClient(version="auto", timeout=60)
    except docker.errors.DockerException as missing:
        reason = f"needs a Docker engine: {missing}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; .ci/run starts one")
        pytest.skip(reason)
    with closing(api):
        make_image(api)
        yield api


@pytest.fixture
def engine(_docker: object) -> Iterator[Engine]:
    """A real Docker engine; whatever the test made there is gone afterwards."""
    from tests.docker_engine import Engine

    engine = Engine(_docker)
    try:
        yield engine
    finally:
        engine.clean()
