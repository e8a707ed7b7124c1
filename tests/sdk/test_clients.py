"""Tagged clients: openai's own over real sockets, and plain ones of its flavour."""

import sys

import openai
import pytest

import thunder_sdk as thunder
from thunder_sdk import _tagging, _transport
from thunder_sdk.testing import RecordingServer, use_sdk

httpx = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def elsewhere():
    """A server that nobody configured."""
    with RecordingServer() as server:
        yield server


@pytest.fixture
def client(server, sdk):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=2) as client:
        yield thunder.wrap_openai(client)


def tagged(request):
    return request.headers.get("x-thunder-program-id")


def test_calls_carry_the_current_program(server, client):
    client.chat.completions.create(**ASK)
    with thunder.program() as p:
        answer = client.chat.completions.create(**ASK)
        chunks = list(client.chat.completions.create(**ASK, stream=True))
        raw = client.chat.completions.with_raw_response.create(**ASK)
    assert answer.choices[0].message.content == server.reply
    assert "".join(c.choices[0].delta.content for c in chunks) == server.reply
    assert raw.headers["x-thunder-program-id"] == p.id
    assert [tagged(call) for call in server.calls] == [None, p.id, p.id, p.id]
    assert server.calls[1].headers["authorization"] == "Bearer k"


async def test_async_calls_too(server, sdk):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k") as client:
        assert thunder.wrap_openai(client) is client
        async with thunder.program() as p:
            await client.chat.completions.create(**ASK)
            stream = await client.chat.completions.create(**ASK, stream=True)
            assert len([chunk async for chunk in stream]) == 4
            async with client.chat.completions.with_streaming_response.create(**ASK) as response:
                await response.read()
    assert [tagged(call) for call in server.calls] == [p.id] * 3


def test_twice_is_harmless(server, client):
    kind = type(client)
    assert thunder.wrap_openai(thunder.wrap_openai(client)) is client
    assert type(client) is kind
    assert isinstance(client, openai.OpenAI)
    assert not isinstance(client._client._transport._inner, _transport.TaggingTransport)
    assert type(client).__name__ == "OpenAI"


def test_azure(server, sdk):
    client = openai.AzureOpenAI(
        azure_endpoint=server.url, api_key="k", api_version="2024-06-01", azure_deployment="d"
    )
    with thunder.wrap_openai(client), thunder.program() as p, pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ASK)
    (call,) = (r for r in server.requests if "deployments" in r.path)
    assert tagged(call) == p.id
    assert call.headers["api-key"] == "k"


async def test_async_azure(server, sdk):
    client = openai.AsyncAzureOpenAI(azure_endpoint=server.url, api_key="k", api_version="2024-06-01")
    async with thunder.wrap_openai(client), thunder.program() as p:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**ASK)
    assert [tagged(r) for r in server.requests if "deployments" in r.path] == [p.id]


def test_the_clients_base_url_counts_when_it_sends(server, elsewhere):
    with (
        use_sdk("http://127.0.0.1:9"),
        openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client,
        thunder.program(program_id="x").activate(),
    ):
        thunder.wrap_openai(client).chat.completions.create(**ASK)
        client.with_options(base_url=elsewhere.url + "/v1", timeout=5).chat.completions.create(**ASK)
        client.base_url = elsewhere.url + "/v1/"
        client.chat.completions.create(**ASK)
        client.get(
            server.url + "/v1/chat/completions", cast_to=object, options={"max_retries": 0}
        ) if 0 else None
        # One absolute URL off the base URL: not for other hosts to see.
        client.post(server.url + "/v1/chat/completions", cast_to=object, body=ASK)
    assert [tagged(call) for call in server.calls] == ["x", None]
    assert [tagged(call) for call in elsewhere.calls] == ["x", "x"]


def test_copies_with_another_http_client_tag_too(server, client):
    with httpx.Client() as mine, thunder.program() as p:
        client.copy(http_client=mine).chat.completions.create(**ASK)
    assert tagged(server.calls[0]) == p.id


def test_a_redirect_elsewhere_loses_the_tags(server, elsewhere, client):
    server.redirect_to = elsewhere.url + "/v1/chat/completions"
    with thunder.program() as p:
        client.chat.completions.create(**ASK)
    assert tagged(server.calls[0]) == p.id
    (landed,) = elsewhere.calls
    assert not {"x-thunder-program-id", "x-session-id", "traceparent"} & set(landed.headers)


def test_a_redirect_keeps_what_the_caller_set(server, elsewhere, client):
    server.redirect_to = elsewhere.url + "/v1/chat/completions"
    with thunder.program():
        client.chat.completions.create(**ASK, extra_headers={"x-session-id": "mine", "X-Other": "1"})
    (landed,) = elsewhere.calls
    assert (landed.headers["x-session-id"], landed.headers["x-other"]) == ("mine", "1")
    assert tagged(landed) is None


def test_a_redirect_on_the_spot_keeps_the_tags(server, client):
    server.redirect_to = f"{server.url}/p/other/v1/chat/completions"
    with thunder.program() as p, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**ASK)  # too many redirects
    assert {tagged(call) for call in server.calls} == {p.id}


def test_a_header_of_the_callers_is_never_overwritten(server, client):
    headers = {"x-THUNDER-program-ID": "mine", "x-session-id": "s", "Traceparent": "t"}
    with thunder.program():
        client.chat.completions.create(**ASK, extra_headers=headers)
    (call,) = server.calls
    assert (tagged(call), call.headers["x-session-id"], call.headers["traceparent"]) == ("mine", "s", "t")


def test_a_request_sent_again_is_tagged_for_the_moment(server, sdk):
    with thunder.http_client() as client:
        request = client.build_request("POST", server.url + "/v1/chat/completions", json=ASK)
        for name in ("a", "b"):
            with thunder.program(program_id=name):
                client.send(request)
        client.send(request)
    assert [tagged(call) for call in server.calls] == ["a", "b", None]


def test_what_the_caller_put_over_a_tag_stays(server, sdk):
    with thunder.http_client() as client:
        request = client.build_request("POST", server.url + "/v1/chat/completions", json=ASK)
        with thunder.program():
            client.send(request)
            request.headers["x-session-id"] = "mine"
        client.send(request)
    assert tagged(server.calls[1]) is None
    assert server.calls[1].headers["x-session-id"] == "mine"


def test_a_client_wrapped_before_disabling(server, client):
    with use_sdk(server.url, disabled=True), thunder.program():
        client.chat.completions.create(**ASK)
    assert tagged(server.calls[0]) is None


def test_nobody_else_sees_an_id(elsewhere, client):
    with thunder.http_client() as plain, thunder.program():
        plain.post(elsewhere.url + "/v1/chat/completions", json=ASK)
    assert tagged(elsewhere.calls[0]) is None


def test_tag_hosts_may_see_it(server, elsewhere):
    with (
        use_sdk(server.url, tag_hosts=[elsewhere.url]),
        thunder.http_client() as plain,
        thunder.program() as p,
    ):
        plain.post(elsewhere.url + "/v1/chat/completions", json=ASK)
    assert tagged(elsewhere.calls[0]) == p.id


def test_retries_go_on_and_say_so(server, client):
    with thunder.program() as p:
        thunder.flush(30)
        server.fail_next += [503]
        client.with_options(max_retries=1).chat.completions.create(**ASK)
    calls = server.calls
    assert [call.headers["x-stainless-retry-count"] for call in calls] == ["0", "1"]
    assert [tagged(call) for call in calls] == [p.id, p.id]


def test_the_users_own_http_client_stays(server, sdk):
    seen = []
    transport = httpx.HTTPTransport()
    mounted = httpx.HTTPTransport()
    mine = httpx.Client(
        transport=transport,
        mounts={"http://mounted.invalid": mounted, "http://direct.invalid": None},
        timeout=7.0,
        headers={"X-Mine": "1"},
        event_hooks={"request": [lambda request: seen.append(request.url.path)]},
    )
    with openai.OpenAI(base_url=server.url + "/v1", api_key="k", http_client=mine) as client:
        thunder.wrap_openai(client)
        assert client._client is mine
        assert mine.timeout == httpx.Timeout(7.0)
        inner = [t and t._inner for t in mine._mounts.values()]
        assert mounted in inner
        assert None in inner
        assert mine._transport._pool is transport._pool
        with thunder.program() as p, client:
            client.chat.completions.create(**ASK)
    assert seen == ["/v1/chat/completions"]
    (call,) = server.calls
    assert (tagged(call), call.headers["x-mine"]) == (p.id, "1")


def test_plain_clients_have_the_flavour_of_openai(sdk):
    with thunder.http_client(timeout=3) as client:
        assert isinstance(client, openai.DefaultHttpxClient)
        assert client.timeout == httpx.Timeout(3)


async def test_plain_async_clients(server, sdk):
    async with thunder.async_http_client() as client, thunder.program() as p:
        await client.get(server.url.replace("127.0.0.1", "localhost") + "/v1/models")
        assert isinstance(client, openai.DefaultAsyncHttpxClient)
        await client.post(server.url + "/v1/chat/completions", json=ASK)
        assert type(client._transport).__name__ == "AsyncTaggingTransport"
    assert tagged(server.calls[0]) == p.id


def test_without_openai_they_are_httpx(sdk, monkeypatch):
    import httpx as plain_httpx

    monkeypatch.setitem(sys.modules, "openai", None)
    with thunder.http_client() as client:
        assert type(client) is plain_httpx.Client


def test_only_clients_can_be_wrapped(sdk):
    for thing in (openai, object(), "client", openai.OpenAI):
        with pytest.raises(thunder.ThunderConfigError, match="wrap_openai takes"):
            thunder.wrap_openai(thing)


def test_control_traffic_finds_the_server_that_answers(server):
    with (
        use_sdk(environ={}) as process,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client,
    ):
        with thunder.wrap_openai(client), thunder.program() as p:
            client.chat.completions.create(**ASK)
        assert process.root == server.url
        assert p.base_url.startswith(server.url)
    assert server.programs[p.id].outcome == "success"
    assert [r.method for r in server.requests] == ["POST", "PUT", "DELETE"]


def test_others_that_answer_are_no_server_of_ours(server):
    server.identifies = False
    with use_sdk(environ={}) as process, openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client:
        p = thunder.program().__enter__()
        thunder.wrap_openai(client).chat.completions.create(**ASK)
        assert process.sender.root is None
        assert tagged(server.calls[0]) == p.id


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://gpu:8300/v1/chat/completions", "http://gpu:8300"),
        ("http://gpu/p/x/v1/chat/completions", "http://gpu"),
        ("https://gpu/team/a/v1/chat/completions", "https://gpu/team/a"),
        ("https://gpu/team/p/x/v1/completions", "https://gpu/team"),
        ("http://[::1]:8300/tokenize", "http://[::1]:8300"),
    ],
)
def test_a_root_is_read_from_what_was_called(url, root):
    with use_sdk(environ={}, threaded=False) as process:
        request = httpx.Request("POST", url)
        _tagging.answered(request, httpx.Headers({"x-thunder-program-id": "p"}))
        assert process.root == root


def test_a_transport_can_be_copied(sdk):
    import copy

    around = _transport.TaggingTransport(httpx.HTTPTransport())
    assert copy.copy(around)._inner is around._inner
    around.close()
