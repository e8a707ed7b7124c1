"""What the package shows, and that importing it does nothing."""

import doctest
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys

import pytest

import thunder_sdk
import thunder_sdk as thunder

PUBLIC = {
    "CURRENT", "ContextThreadPoolExecutor", "DockerEnvironment", "Program", "Resource", "ThunderConfigError",
    "ThunderConnectionError", "ThunderError", "ThunderStateError", "acting", "async_http_client", "attach",
    "current_program", "flush", "http_client", "init", "program", "shutdown", "wrap_openai",
}  # fmt: skip


def test_all_is_curated_sorted_and_there():
    assert set(thunder.__all__) == PUBLIC
    assert thunder.__all__ == sorted(thunder.__all__)
    assert all(hasattr(thunder, name) for name in thunder.__all__)


def test_every_public_name_is_documented():
    for name in thunder.__all__:
        thing = getattr(thunder, name)
        if name != "CURRENT":
            assert inspect.getdoc(thing), name


def test_the_error_tree():
    assert issubclass(thunder.ThunderConfigError, ValueError)
    for error in (thunder.ThunderConfigError, thunder.ThunderConnectionError, thunder.ThunderStateError):
        assert issubclass(error, thunder.ThunderError)
        assert error.__name__ in thunder.ThunderError.__doc__


def test_importing_does_nothing():
    code = """
import json, socket, sys, threading
opened = []
class Socket(socket.socket):
    def __init__(self, *args, **kwargs):
        opened.append(args)
        super().__init__(*args, **kwargs)
socket.socket = Socket
before = set(sys.modules)
import thunder_sdk
new = {m.partition(".")[0] for m in set(sys.modules) - before}
print(json.dumps([threading.active_count(), len(opened), sorted(new)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    threads, sockets, modules = json.loads(done.stdout)
    assert (threads, sockets) == (1, 0)
    assert set(modules) - sys.stdlib_module_names <= {"thunder_sdk", "opentelemetry", "typing_extensions"}


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(thunder_sdk.__path__)])
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"thunder_sdk.{name}")).failed == 0


def test_signatures_are_those_of_the_contract():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(thunder.init) == [
        "base_url", "api_key", "strict", "disabled", "dialects", "tag_hosts", "lease", "timeout", "verify",
    ]  # fmt: skip
    assert names(thunder.program) == [
        "name", "program_id", "parent", "group", "priority", "tags", "metadata", "expected_context", "lease",
        "max_wait", "environment",
    ]  # fmt: skip
    assert names(thunder.acting) == ["tool", "expected"]
    assert names(thunder.flush) == names(thunder.shutdown) == ["timeout"]
