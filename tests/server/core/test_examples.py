"""The examples in the core's docstrings are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from thunder_server import core

MODULES = [module.name for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_some():
    found = [test for name in MODULES for test in doctest.DocTestFinder().find(import_module(name))]
    assert sum(bool(test.examples) for test in found) >= 4
