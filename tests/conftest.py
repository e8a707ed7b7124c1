"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.docker_engine import Engine, make_image


@pytest.fixture(scope="session")
def _docker() -> Iterator[object]:
    import docker

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
    engine = Engine(_docker)
    try:
        yield engine
    finally:
        engine.clean()
