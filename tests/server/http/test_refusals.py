"""What we refuse ourselves: in the client's dialect, naming what is wrong, changing nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from .fake_engine import FakeEngine
from .harness import CHAT, HELLO, Served, serve


async def raw(served: Served, request: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of what the server answers to these bytes."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        line.split()[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    body = await reader.readexactly(int(length))
    writer.close()
    return int(head.split(b" ")[1]), json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"\xff", b'{"a":NaN}', b"[" * 100_000, b'{"n":' + b"1" * 10_000 + b"}"),
        *(b'{"program_id":"a b"}', b'{"program_id":7}', b'{"program_id":"\\ud800"}'),
        b'{"extra_body":{"program_id":[]}}',
    ],
)
async def test_malformed_bodies(body: bytes) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        for path in (CHAT, "/v1/completions", "/v1/responses", "/p/x" + CHAT):
            async with served.client.post(served.url + path, data=body) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (400, "invalid_request")
            assert error["type"] == "invalid_request_error"
            assert set(error) == {"message", "type", "code", "param"}
        assert not engine.seen
        assert not served.runtime.scheduler.programs


async def test_anthropic_shape_on_messages() -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        for path in ("/v1/messages", "/p/x/v1/messages"):
            async with served.client.post(served.url + path, data=b"[]") as answer:
                body = await answer.json()
            assert (answer.status, body["type"], body["error"]["type"]) == (
                400,
                "error",
                "invalid_request_error",
            )
            async with served.client.get(served.url + path) as answer:
                assert (answer.status, (await answer.json())["type"]) == (405, "error")


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X-Thunder-Program-Id": "a b"}, "X-Thunder-Program-Id"),
        ({"X-Thunder-Max-Wait": "soon"}, "X-Thunder-Max-Wait"),
        ({"X-Thunder-Priority": "high"}, "X-Thunder-Priority"),
        ({"X-Thunder-Group": "/"}, "X-Thunder-Group"),
        ({"X-Thunder-Parent-Id": "\xff"}, "X-Thunder-Parent-Id"),
    ],
)
async def test_garbage_in_headers(headers: dict[str, str], param: str) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        async with served.client.post(served.url + CHAT, json=HELLO, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (400, param)
        assert not engine.seen


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "POST"),
        ("PUT", "/p/x" + CHAT, 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("GET", "/nothing", 404, None),
        ("GET", "/p/x/nothing", 404, None),
        ("GET", "/", 404, None),
        ("GET", "/v1/%2e%2e/metrics", 404, None),
    ],
)
async def test_paths_and_methods(method: str, path: str, status: int, allow: str | None) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        answer_status, body = await raw(
            served, f"{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert answer_status == status
        assert set(body["error"]) == {"message", "type", "code", "param"}
        assert allow is None or allow in body["error"]["message"]
        assert not engine.seen


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/p/x/v1/embeddings", "/nothing"])
async def test_an_expectation_that_cannot_be_met(path: str) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        head = f"POST {path} HTTP/1.1\r\nHost: t\r\nExpect: banana\r\nContent-Length: 0\r\n\r\n"
        status, body = await raw(served, head.encode())
        assert (status, body["error"]["code"], body["error"]["param"]) == (417, "invalid_request", "Expect")
        assert not engine.seen


LONG = b"x" * 200_000


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x00garbage\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: t\r\nX A: b\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: t\r\nX: " + LONG + b"\r\n\r\n", 431),
        (b"GET /" + LONG + b" HTTP/1.1\r\nHost: t\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: t\r\n" + b"X: y\r\n" * 5000 + b"\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nHost: t\r\nExpect: a miracle\r\n\r\n", 417),
    ],
)
async def test_what_is_no_http_is_refused_in_shape_and_the_answer_arrives(
    request_bytes: bytes, status: int
) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        answered, body = await raw(served, request_bytes)
        assert (answered, set(body["error"])) == (status, {"message", "type", "code", "param"})
        # Nothing is broken by it.
        assert (await served.chat())[0] == 200


async def test_a_body_that_is_too_large() -> None:
    async with FakeEngine() as engine, serve([engine], max_body=1000) as served:
        for path in (CHAT, "/v1/embeddings"):
            async with served.client.post(served.url + path, data=b"x" * 1001) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")
        status, body = await raw(
            served,
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"3f0\r\n"
            + b"x" * 1008
            + b"\r\n",
        )
        assert (status, body["error"]["code"]) == (413, "request_too_large")
        status, body = await raw(
            served, b"POST /v1/messages HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n"
        )
        assert (status, body["error"]["type"]) == (413, "request_too_large")
        assert not engine.seen


async def test_a_fault_of_ours_is_a_500_in_shape(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        served.runtime.arrive = None  # type: ignore[assignment,method-assign]
        status, _, answer = await served.chat()
        assert (status, answer["error"]["code"]) == (500, "internal_error")
        assert "failed" in caplog.text


@pytest.mark.parametrize("rest", [b"zz\r\n", b"5\r\nabc"])
async def test_a_body_that_breaks_off(rest: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n")
        assert (await served.chat())[0] == 200  # so the server has read the first part by now
        writer.write(rest)
        if rest.startswith(b"zz"):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
        assert (await served.chat())[0] == 200
        assert len(engine.seen) == 2
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
