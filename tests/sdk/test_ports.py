"""``p.resources.port()``: what users see. How leases work is in tests/sdk/reclaim/test_ports.py."""

import socket

import pytest

import thunder_sdk as thunder
from thunder_sdk.reclaim import ports
from thunder_sdk.reclaim.endings import Failed
from thunder_sdk.testing import use_sdk


def test_a_port_is_the_programs_until_it_is_closed(server, sdk):
    with thunder.program() as p:
        first, second = p.resources.port(), p.resources.port()
        assert first != second
        assert 20_000 <= first <= 32_767
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", first))
        with thunder.program() as other:
            assert other.resources.port(first, low=second, high=second + 50) not in (first, second)
        with pytest.raises(Failed):
            ports.require_free(str(first))
    ports.require_free(str(first))
    ports.require_free(str(second))
    declared = [(e["kind"], e["ref"]) for e in server.events if e["program_id"] == p.id]
    assert declared == [("port", str(first)), ("port", str(second))]
    with pytest.raises(thunder.ThunderStateError):
        p.resources.port()


def test_no_server_is_needed(dead_url):
    with use_sdk(dead_url), thunder.program() as p:
        assert p.resources.port()


def test_none_is_free(sdk):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with thunder.program() as p, pytest.raises(thunder.ThunderStateError, match="is free"):
            p.resources.port(low=port, high=port)


@pytest.mark.parametrize(
    "options",
    [
        {"low": 0}, {"high": 65_536}, {"low": 5, "high": 4}, {"preferred": 0}, {"preferred": "8080"},
        {"low": True}, {"high": 1.5},
    ],
)  # fmt: skip
def test_what_is_no_port_or_range(sdk, options):
    with thunder.program() as p, pytest.raises(thunder.ThunderConfigError):
        p.resources.port(**options)


def test_disabled_it_is_a_number_and_no_lease(dead_url):
    with use_sdk(dead_url, disabled=True), thunder.program() as p:
        port = p.resources.port(low=21_500, high=21_600)
        assert 21_500 <= port <= 21_600
        assert p.resources.port(8080) == 8080
        ports.require_free(str(port))
