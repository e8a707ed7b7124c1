"""The LiteLLM proxy between openai clients and our server."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

import thunder_sdk as thunder
from thunder_sdk.testing import use_sdk

from ..harness.dialogue import Fails, Hangs, says
from ..harness.engine import ours
from ..harness.lanes import Lane
from .boot import proxy

pytestmark = pytest.mark.timeout(240)
ASKS = [{"role": "user", "content": "hello"}]
ROUTES = {
    "/v1/chat/completions": {"messages": ASKS},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": ASKS, "max_tokens": 50},
}


@pytest.fixture(scope="module")
def proxy_lane(tmp_path_factory):
    return Lane("proxy", tmp_path_factory.mktemp("proxy")).require()


@pytest.fixture(scope="module")
def root(proxy_lane, _server, _elsewhere):
    with proxy(proxy_lane, _server.v1, _elsewhere.url + "/v1", THUNDER_BASE_URL=_server.url) as root:
        yield root


@pytest.fixture
def http(root):
    with httpx.Client(base_url=root, headers={"Authorization": "Bearer sk--"}, timeout=60) as client:
        yield client


@pytest.fixture
def client(root):
    with openai.OpenAI(base_url=root + "/v1", api_key="sk-team-ada", max_retries=0) as client:
        yield client


def post(http, path, *, headers=None, **fields):
    answer = http.post(path, json={"model": "m", **ROUTES[path], **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.proves("litellm-proxy", "identity", "streaming", "async")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("place", ["header", "body", "metadata"])
def test_an_id_arrives_from_wherever_it_is_put(http, engine, server, path, place, stream):
    program = f"{place}-{path.rsplit('/')[-1]}-{stream}"
    where = {
        "header": {"headers": {"X-Thunder-Program-Id": program}},
        "body": {"program_id": program},
        "metadata": {"metadata": {"program_id": program}},
    }[place]
    assert "Hello" in post(http, path, stream=stream, **where)
    assert server.types(program, "call.arrived", "call.finished") == ["call.arrived", "call.finished"]
    (seen,) = engine.requests
    assert seen.header("x-session-id") == program
    assert program.encode() not in seen.body


def test_models_by_the_openai_client_carry_it_too(http, engine, server):
    post(http, "/v1/chat/completions", model="by-openai", program_id="by-openai-client")
    assert server.types("by-openai-client", "call.arrived") == ["call.arrived"]


@pytest.mark.proves("litellm-proxy", "children")
def test_everything_said_about_a_program_arrives(http, engine, server):
    said = {"x-thunder-PARENT-id": "mother", "X-Thunder-Group": "siblings", "x-Thunder-priority": "5"}
    post(http, "/v1/chat/completions", headers={**said, "X-Thunder-Program-Id": "daughter"})
    told = server.program("daughter")
    assert (told["parent_id"], told["group"], told["priority"]) == ("mother", "siblings", 5)


def test_an_empty_header_is_none(http, engine, server):
    post(http, "/v1/chat/completions", program_id="in-the-body", headers={"X-Thunder-Program-Id": ""})
    assert server.types("in-the-body", "call.arrived") == ["call.arrived"]


def test_without_an_id_a_call_stands_alone(http, engine, server):
    post(http, "/v1/chat/completions")
    post(http, "/v1/chat/completions")
    assert len({entry["program_id"] for entry in server.events if entry["type"] == "call.arrived"}) == 2
    assert [ours(seen) for seen in engine.requests] == [{}, {}]


def test_tenants_are_groups_and_their_sessions_stay_apart(root, engine, server):
    for key in ("sk-red-ada", "sk-blue-bob", "sk--eve", "sk-fast-ada"):
        with openai.OpenAI(base_url=root + "/v1", api_key=key) as client:
            client.chat.completions.create(
                model="m", messages=ASKS, extra_headers={"x-session-id": "the session"}
            )
            client.chat.completions.create(
                model="m", messages=ASKS, extra_headers={"x-litellm-session-id": "one"}
            )
    told = [(e["program_id"], e["group"]) for e in server.events if e["type"] == "call.arrived"]
    assert [group for _, group in told] == ["red", "red", "blue", "blue", "eve", "eve", "fast", "fast"]
    assert [program for program, _ in told[1::2]] == ["red:one", "blue:one", "eve:one", "fast:one"]
    hashed = [program for program, _ in told[::2]]
    assert len(set(hashed)) == 4
    assert all(program.startswith("h_") for program in hashed)
    assert server.program("fast:one")["priority"] == 3


def test_a_fallback_to_another_host_carries_nothing(http, engine, server, elsewhere):
    engine.faults(Fails(500))
    text = post(http, "/v1/chat/completions", model="by-openai", program_id="falls-back")
    assert "Hello" in text
    (seen,) = elsewhere.requests
    assert ours(seen) == {}
    assert b"falls-back" not in seen.body


def test_a_client_that_goes_ends_its_call(client, engine, server):
    engine.plays(says("word " * 2000))
    engine.pace = 0.02
    stream = client.chat.completions.create(
        model="m", messages=ASKS, stream=True, extra_headers={"X-Thunder-Program-Id": "leaves"}
    )
    next(iter(stream))
    stream.close()
    server.wait_for(
        lambda told: [e for e in told if (e["type"], e["program_id"]) == ("call.finished", "leaves")]
    )
    engine.wait_for(lambda seen: seen[0].gone.is_set())
    (end,) = server.story("leaves", "call.finished")
    assert end["end"] == "client_gone"


def test_a_clients_retry_takes_the_place_of_what_it_gave_up(client, engine, server):
    """The proxy itself goes on with a whole answer that nobody waits for."""
    engine.faults(Hangs())
    client.with_options(timeout=3, max_retries=1).chat.completions.create(
        model="m", messages=ASKS, extra_headers={"X-Thunder-Program-Id": "retries"}
    )
    first, second = engine.requests
    assert first.body == second.body
    engine.wait_for(lambda seen: seen[0].gone.is_set())
    assert server.types("retries", "call.arrived", "call.cancelled") == [
        "call.arrived",
        "call.arrived",
        "call.cancelled",
    ]


@pytest.mark.proves("litellm-proxy", "end")
def test_an_agent_with_the_sdk_behind_the_proxy(root, client, engine, server):
    with use_sdk(server.url, tag_hosts=[root]):
        wrapped = thunder.wrap_openai(client)
        with thunder.program(program_id="sdk-agent") as p:
            wrapped.chat.completions.create(model="m", messages=ASKS)
            with p.acting("bash", expected=2):
                pass
            for _ in wrapped.chat.completions.create(model="m", messages=ASKS, stream=True):
                pass
        thunder.flush()
    kinds = ("call.arrived", "call.finished", "acting.started", "acting.finished", "program.terminated")
    call, tool = ["call.arrived", "call.finished"], ["acting.started", "acting.finished"]
    assert server.types("sdk-agent", *kinds) == [*call, *tool, *call, "program.terminated"]
    assert server.program("sdk-agent")["outcome"] == "success"
    assert server.program("sdk-agent")["group"] == "team"


@pytest.mark.parametrize("setting", ["disabled", "server down"])
def test_without_the_server_the_proxy_goes_on_as_before(proxy_lane, engine, elsewhere, dead_url, setting):
    environ = {"disabled": {"THUNDER_DISABLED": "1"}, "server down": {"THUNDER_BASE_URL": dead_url}}[setting]
    with proxy(proxy_lane, engine.url + "/v1", elsewhere.url + "/v1", **environ) as root:
        answer = httpx.post(
            root + "/v1/chat/completions",
            json={"model": "m", "messages": ASKS},
            headers={"Authorization": "Bearer sk-red-ada", "X-Thunder-Program-Id": "nobody"},
            timeout=60,
        )
    assert answer.status_code == 200, answer.text
    assert [ours(seen) for seen in engine.requests] == [{}]
    assert "thunder" not in json.dumps(engine.requests[0].headers).lower()
