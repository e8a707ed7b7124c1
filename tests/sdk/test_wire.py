"""The vocabulary both sides share."""

import ast
import doctest
import hashlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_sdk import wire


def test_examples_in_docstrings():
    assert doctest.testmod(wire).failed == 0


def test_wire_is_stdlib_only():
    tree = ast.parse(Path(wire.__file__).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {m.partition(".")[0] for m in modules} <= sys.stdlib_module_names


@pytest.mark.parametrize("value", ["a", "prg_" + "0" * 32, "a.b", "...", "A:b@c+d=e-f_g", "x" * 200])
def test_valid_ids(value):
    assert wire.is_valid_id(value)
    assert wire.foreign_id(value) == value


@pytest.mark.parametrize("value", ["", ".", "..", "a b", "a/b", "a\n", "ä", "x" * 201, None, 7, b"a", ["a"]])
def test_invalid_ids(value):
    assert not wire.is_valid_id(value)


@given(st.text(st.characters(codec=None)))
def test_every_text_has_a_foreign_id(text):
    found = wire.foreign_id(text)
    assert wire.is_valid_id(found)
    assert found == text or found.startswith("h_")


def test_foreign_id_is_the_hash_of_the_bytes_on_the_wire():
    raw = b"caf\xe9 1"
    text = raw.decode("utf-8", "surrogateescape")
    assert wire.foreign_id(text) == "h_" + hashlib.sha256(raw).hexdigest()[:32]


def test_any_surrogate_has_a_hash():
    assert wire.foreign_id("\ud800").startswith("h_")


@pytest.mark.parametrize(
    ("given_url", "root"),
    [
        ("http://127.0.0.1:8300", "http://127.0.0.1:8300"),
        ("http://127.0.0.1:8300/", "http://127.0.0.1:8300"),
        ("http://127.0.0.1:8300/v1", "http://127.0.0.1:8300"),
        (" http://127.0.0.1:8300/v1/ ", "http://127.0.0.1:8300"),
        ("HTTPS://Gpu.Example:443/team/a/v1/", "https://gpu.example/team/a"),
        ("http://gpu:80", "http://gpu"),
        ("http://[::1]:8300/v1", "http://[::1]:8300"),
        ("http://gpu/serv1", "http://gpu/serv1"),
    ],
)
def test_root_url(given_url, root):
    assert wire.root_url(given_url) == root
    assert wire.root_url(root) == root


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "gpu:8300",
        "ftp://gpu",
        "http://",
        "http://gpu:99999",
        "http://gpu:x",
        "http://u:p@gpu",
        "http://gpu?q=1",
        "http://gpu#f",
    ],
)
def test_root_url_refuses(bad):
    with pytest.raises(ValueError):
        wire.root_url(bad)


@pytest.mark.parametrize("bad", ["gpu", "//gpu", "http:///x"])
def test_origin_needs_scheme_and_host(bad):
    with pytest.raises(ValueError, match="scheme and host"):
        wire.origin(bad)


def test_paths():
    assert wire.program_path("a+b") == "/thunder/v1/programs/a+b"
