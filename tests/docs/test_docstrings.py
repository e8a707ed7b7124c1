"""The examples in the server's docstrings run as they stand; the SDK and the core have tests of their own."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import thunder_server

MODULES = [
    found.name
    for found in pkgutil.walk_packages(thunder_server.__path__, "thunder_server.")
    if not found.name.startswith("thunder_server.core") and not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    found = [test for name in MODULES for test in doctest.DocTestFinder().find(import_module(name))]
    assert sum(bool(test.examples) for test in found) > 20
