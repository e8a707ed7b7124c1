"""Argument over environment over default, and messages that say what to write instead."""

import math
import ssl

import pytest

import thunder_sdk as thunder
from thunder_sdk._config import Config, seconds
from thunder_sdk.testing import use_sdk


def test_defaults():
    config = Config.resolve({})
    assert (config.base_url, config.root) == (None, "http://127.0.0.1:8300")
    assert (config.api_key, config.strict, config.disabled) == (None, False, False)
    assert (config.dialects, config.lease, config.timeout) == (("thunder",), 60.0, 5.0)
    assert config.control


def test_the_environment_fills_in():
    environ = {
        "THUNDER_BASE_URL": "http://gpu:9000/v1/",
        "THUNDER_API_KEY": "k",
        "THUNDER_STRICT": "Yes",
        "THUNDER_DISABLED": " on ",
    }
    config = Config.resolve(environ)
    assert (config.base_url, config.api_key, config.strict, config.disabled) == (
        "http://gpu:9000",
        "k",
        True,
        True,
    )
    assert not config.control


def test_arguments_win():
    environ = {
        "THUNDER_BASE_URL": "nonsense",
        "THUNDER_API_KEY": "k",
        "THUNDER_STRICT": "1",
        "THUNDER_DISABLED": "1",
    }
    config = Config.resolve(environ, "http://other/team/v1", api_key="mine", strict=False, disabled=False)
    assert (config.base_url, config.api_key) == ("http://other/team", "mine")
    assert (config.strict, config.disabled) == (False, False)


@pytest.mark.parametrize("text", ["", "0", "false", "no", "off", "maybe"])
def test_anything_else_is_no(text):
    assert not Config.resolve({"THUNDER_STRICT": text}).strict


def test_empty_variables_count_as_absent():
    config = Config.resolve({"THUNDER_BASE_URL": "", "THUNDER_API_KEY": ""})
    assert (config.base_url, config.api_key) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"base_url": "gpu:8300"}, "base_url"),
        ({"base_url": 8300}, "base_url"),
        ({"base_url": ""}, "base_url"),
        ({"dialects": "thunder"}, "dialects is a sequence"),
        ({"dialects": 5}, "dialects is a sequence"),
        ({"tag_hosts": "gpu"}, "tag_hosts is a sequence"),
        ({"tag_hosts": ("gpu box",)}, "tag_hosts"),
        ({"tag_hosts": ("*.example",)}, "tag_hosts"),
        ({"api_key": "two\nlines"}, "api_key"),
        ({"api_key": "schlüssel"}, "api_key"),
        ({"api_key": 5}, "api_key"),
        ({"verify": "/no/such/file.pem"}, "verify"),
        ({"verify": 1}, "verify"),
        ({"dialects": ("thunder", "dynamite")}, "dynamo"),
        ({"tag_hosts": ("http://",)}, "tag_hosts"),
        ({"tag_hosts": ("gpu:x",)}, "tag_hosts"),
        ({"tag_hosts": ("http://gpu/v1",)}, "tag_hosts"),
        ({"tag_hosts": ("http://me@gpu",)}, "tag_hosts"),
        ({"tag_hosts": (None,)}, "tag_hosts"),
        ({"lease": 0}, "lease"),
        ({"lease": math.inf}, "lease"),
        ({"lease": True}, "lease"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "5"}, "timeout"),
    ],
)
def test_mistakes_are_named(arguments, says):
    with pytest.raises(thunder.ThunderConfigError, match=says):
        Config.resolve({}, **arguments)


def test_a_variable_is_named_too():
    for name, value in {"THUNDER_BASE_URL": "gpu:8300", "THUNDER_API_KEY": "a b"}.items():
        with pytest.raises(ValueError, match=name):
            Config.resolve({name: value})


def test_seconds_may_be_zero():
    assert seconds("max_wait", 0) == 0.0
    with pytest.raises(thunder.ThunderConfigError, match="0 or more"):
        seconds("max_wait", -1)


@pytest.mark.parametrize(
    ("entry", "scheme", "host", "port", "tagged"),
    [
        ("gpu", "http", "gpu", None, True),
        ("GPU", "https", "gpu", 8443, True),
        ("gpu:8000", "http", "gpu", 8000, True),
        ("gpu:8000", "http", "gpu", 8001, False),
        ("gpu:80", "http", "gpu", None, True),
        ("http://gpu", "http", "gpu", 80, True),
        ("http://gpu/", "https", "gpu", None, False),
        ("https://gpu:8443", "https", "gpu", 8443, True),
        ("gpu", "http", "evil-gpu", None, False),
        ("[::1]:8000", "http", "::1", 8000, True),
    ],
)
def test_tag_hosts(entry, scheme, host, port, tagged):
    assert Config.resolve({}, tag_hosts=[entry]).tags(scheme, host, port) is tagged


def test_the_configured_server_is_tagged():
    config = Config.resolve({}, "http://gpu:9000/team")
    assert config.tags("http", "gpu", 9000)
    assert not config.tags("https", "gpu", 9000)
    assert not config.tags("http", "127.0.0.1", 8300)


def test_init_sets_up_and_replaces(server, sources, monkeypatch):
    monkeypatch.setenv("THUNDER_BASE_URL", server.url)
    with use_sdk("http://127.0.0.1:9/", sources=sources):
        thunder.init(strict=True, verify=ssl.create_default_context())
        with thunder.program("x"):
            pass
    assert server.requests[0].method == "PUT"


def test_the_first_use_reads_the_environment(server, monkeypatch):
    from thunder_sdk import _process

    before = _process.install(None)
    try:
        assert thunder.flush(30)
        _process.install(None)
        monkeypatch.setenv("THUNDER_BASE_URL", server.url)
        thunder.init()
        thunder.program("x").__enter__().close("dropped")
        thunder.shutdown(30)
    finally:
        _process.install(before)
    assert [r.method for r in server.requests] == ["PUT", "DELETE"]
