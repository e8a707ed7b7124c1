"""What removing needs to be tried on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65_534


@contextmanager
def _as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield  # not privileged anyway
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def unprivileged():
    """Makes blocks without root's rights: over others' files, and over others' processes."""
    return _as_nobody
