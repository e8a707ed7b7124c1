"""The control connection: kept alive, reopened, by proxy, over TLS."""

import http.server
import os
import ssl
import threading
from pathlib import Path

import pytest

from thunder_sdk._http import Connection
from thunder_sdk.testing import RecordingServer


@pytest.fixture
def connect():
    opened = []

    def connect(root, **kw):
        opened.append(Connection(root, **{"api_key": None, "verify": True, "timeout": 10.0, **kw}))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def test_one_connection_serves_many_requests(server, connect):
    connection = connect(server.url, api_key="k")
    for _ in range(2):
        answer = connection.request("PUT", "/thunder/v1/programs/a", {"name": "x"})
    assert (answer.status, answer.body["id"]) == (200, "a")
    assert server.requests[0].headers["authorization"] == "Bearer k"
    assert connection._connection.sock is not None


def test_a_connection_the_server_closed_is_opened_again(connect):
    class OneShot(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            if self.path == "/goodbye":
                self.send_header("Connection", "close")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"[1]\n" if self.path == "/" else b"bye\n")
            self.close_connection = True  # without a word, unless /goodbye

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneShot) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, args=(0.02,))
        thread.start()
        connection = connect(f"http://127.0.0.1:{http_server.server_port}")
        for path in ("/", "/", "/goodbye", "/"):
            assert connection.request("GET", path).body == {}
        http_server.shutdown()
        thread.join()


def test_a_time_out_on_a_kept_connection_costs_that_connection_only(server, connect):
    connection = connect(server.url, timeout=0.2)
    connection.request("GET", "/thunder/v1/a")
    server.gate.clear()
    with pytest.raises(TimeoutError):
        connection.request("GET", "/thunder/v1/b")
    server.gate.set()
    assert connection.request("GET", "/thunder/v1/c").status == 404


def test_disowning_what_was_never_connected(server, connect):
    connection = connect(server.url)
    connection.disown()
    connection._connection = connection._connect()
    connection.disown()
    connection.request("GET", "/x")
    descriptor = connection._connection.sock.fileno()
    connection.disown()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_refused_connection_is_an_oserror(dead_url, connect):
    with pytest.raises(OSError, match="refused"):
        connect(dead_url).request("GET", "/")


def test_a_path_prefix_is_kept(server, connect):
    connect(server.url + "/team/a").request("GET", "/thunder/v1/events")
    assert server.requests[0].path == "/team/a/thunder/v1/events"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_usual_proxy_variables_count(server, connect, monkeypatch, scheme):
    monkeypatch.setenv("http_proxy", scheme + server.url.removeprefix("http://"))
    monkeypatch.delenv("no_proxy", raising=False)
    connect("http://gpu.invalid/team").request("GET", "/x")
    assert server.requests[0].path == "/team/x"
    assert server.requests[0].headers["host"] == "gpu.invalid"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    connect(server.url).request("GET", "/y")
    assert server.requests[1].path == "/y"


@pytest.fixture
def certificate():
    """A self-signed certificate for 127.0.0.1 and its key, good for these tests alone."""
    return str(Path(__file__).with_name("localhost.pem"))


@pytest.fixture
def tls_server(certificate):
    server = RecordingServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
    with server:
        yield server


def test_tls_is_verified(tls_server, certificate, connect):
    root = tls_server.url.replace("http://", "https://")
    with pytest.raises(ssl.SSLError):
        connect(root).request("GET", "/x")
    context = ssl.create_default_context(cafile=certificate)
    for verify in (certificate, context, False):
        assert connect(root, verify=verify).request("GET", "/x").status == 404


def test_tls_goes_through_a_tunnel(server, connect, monkeypatch):
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(OSError, match="501"):  # the proxy here knows no CONNECT
        connect("https://gpu.invalid").request("GET", "/x")
