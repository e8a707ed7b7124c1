"""Disabled, and other people's dialects only: programs are objects with an id and nothing leaves."""

import threading

import pytest

import thunder_sdk as thunder
from thunder_sdk.testing import use_sdk


@pytest.fixture(params=["argument", "variable"])
def disabled(request, server):
    if request.param == "argument":
        context = use_sdk(server.url, disabled=True)
    else:
        context = use_sdk(server.url, environ={"THUNDER_DISABLED": "1"})
    with context as process:
        yield process


@pytest.fixture
def no_new_threads():
    before = set(threading.enumerate())
    yield
    assert not [t for t in set(threading.enumerate()) - before if t.name == "thunder-sdk"]


async def test_nothing_happens(server, disabled, no_new_threads):
    import openai

    client = openai.OpenAI(base_url=server.url + "/v1", api_key="k")
    kind = type(client)
    assert thunder.wrap_openai(client) is client
    assert type(client) is kind
    assert thunder.wrap_openai("anything") == "anything"
    with thunder.http_client() as plain:
        assert type(plain._transport).__module__.startswith("httpx")
    async with thunder.program("x") as p:
        assert thunder.current_program() is p
        assert p.id
        assert (p.headers(), p.extra_body()) == ({}, {})
        assert "THUNDER_PROGRAM_CONTEXT" not in p.env()
        with p.acting("bash"), p.activate():
            p.heartbeat()
            p.resources.container("c").release()
        client.chat.completions.create(model="m", messages=[])
    assert (p.status, p.outcome) == ("terminated", "success")
    assert thunder.flush(30)
    thunder.shutdown(30)
    assert [r.path for r in server.requests] == ["/v1/chat/completions"]
    assert not [name for name in server.requests[0].headers if "thunder" in name or name == "traceparent"]
    client.close()


def test_strict_and_disabled(server, no_new_threads):
    with use_sdk("http://127.0.0.1:9", strict=True, disabled=True), thunder.program():
        pass


def test_without_our_dialect_there_is_no_control_traffic(server, no_new_threads):
    import openai

    with (
        use_sdk(server.url, dialects=("dynamo", "llm-d"), strict=True),
        openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client,
        thunder.program(group="g") as p,
        p.acting("bash"),
    ):
        thunder.wrap_openai(client).chat.completions.create(model="m", messages=[])
    (call,) = server.requests
    assert call.headers["x-dynamo-session-id"] == p.id
    assert call.headers["x-llm-d-inference-fairness-id"] == "g"
    assert not [name for name in call.headers if name.startswith("x-thunder")]
