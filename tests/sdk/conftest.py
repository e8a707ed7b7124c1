"""Every test gets the SDK to itself, pointed at a recording server of its own."""

import socket

import pytest

from thunder_sdk.testing import FakeSources, RecordingServer, use_sdk


@pytest.fixture
def server():
    with RecordingServer() as server:
        yield server


@pytest.fixture
def sdk(server):
    with use_sdk(server.url) as process:
        yield process


@pytest.fixture
def sources():
    return FakeSources()


@pytest.fixture
def dead_url():
    """An address that refuses connections for as long as the test runs."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"
