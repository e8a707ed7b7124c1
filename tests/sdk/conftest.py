"""Every test gets the SDK to itself, pointed at a recording server of its own."""

import pytest

from thunder_sdk.testing import RecordingServer, use_sdk


@pytest.fixture
def server():
    with RecordingServer() as server:
        yield server


@pytest.fixture
def sdk(server):
    with use_sdk(server.url) as process:
        yield process
