"""Fixtures around `thunder_sdk.testing`: ``pytest_plugins = ["thunder_sdk.pytest_plugin"]`` in a conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thunder_sdk._process import Process
from thunder_sdk.testing import FakeSources, RecordingServer, use_sdk


@pytest.fixture
def thunder_server() -> Iterator[RecordingServer]:
    """A recording server on a port of its own."""
    with RecordingServer() as server:
        yield server


@pytest.fixture
def thunder_sources() -> FakeSources:
    """Time and ids that the test controls."""
    return FakeSources()


@pytest.fixture
def thunder_sdk_process(thunder_server: RecordingServer) -> Iterator[Process]:
    """The SDK pointed at `thunder_server` for one test."""
    with use_sdk(thunder_server.url) as process:
        yield process
