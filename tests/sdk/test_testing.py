"""The fakes that ship with the SDK, and the fixtures around them."""

import httpx
import pytest

import thunder_sdk as thunder
from thunder_sdk.pytest_plugin import thunder_sdk_process, thunder_server, thunder_sources  # noqa: F401
from thunder_sdk.testing import RecordingServer, use_sdk


def test_the_fixtures(thunder_sdk_process, thunder_server, thunder_sources):  # noqa: F811
    assert thunder_sources.new_hex() == "0" * 31 + "1"
    with thunder.program() as p:
        pass
    assert thunder_server.programs[p.id].outcome == "success"
    assert thunder_sdk_process.config.base_url == thunder_server.url


def test_waiting_in_vain_says_what_came(server):
    httpx.get(server.url + "/healthz")
    with pytest.raises(AssertionError, match="GET /healthz"):
        server.wait_for(lambda s: s.programs, timeout=0.01)


def test_unknown_paths_and_programs(server):
    assert httpx.get(server.url + "/thunder/v1/nothing").status_code == 404
    assert httpx.get(server.url + "/thunder/v1/programs/x").json()["status"] == "active"
    httpx.delete(server.url + "/thunder/v1/programs/x", params={"outcome": "error"})
    assert httpx.delete(server.url + "/thunder/v1/programs/x").json()["outcome"] == "error"


def test_events_count_once(server):
    event = {"program_id": "x", "seq": 1, "at": 0.0, "type": "heartbeat"}
    for _ in range(2):
        httpx.post(server.url + "/thunder/v1/events", json={"emitter": "0" * 32, "events": [event]})
    assert len(server.events) == 2
    assert len(server.programs["x"].events) == 1


def test_a_closed_program_opens_again_with_a_call(server):
    ask = {"model": "m", "messages": []}
    for _ in range(2):
        httpx.post(server.url + "/p/x/v1/chat/completions", json=ask)
        server.terminate("x", "success")
    assert server.programs["x"].generation == 2
    answer = httpx.post(server.url + "/v1/chat/completions", json=ask)
    assert "x-thunder-program-id" not in answer.headers


def test_use_sdk_hides_what_was_current(server):
    with RecordingServer() as other, use_sdk(server.url), thunder.program() as p:
        with use_sdk(other.url):
            assert thunder.current_program() is None
        assert thunder.current_program() is p
