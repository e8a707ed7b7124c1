"""A Docker engine that can be told to fail: the part of its API that is used here, on a Unix socket.

It keeps objects in dictionaries as the engine describes them, and answers with the engine's own words where
the product reads them. Real engines are used wherever nothing has to go wrong.
"""

from __future__ import annotations

import json
import re
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

LABEL = {"thunder.program": "p1"}
Answer = tuple[int, object]
Fault = Callable[["Handler"], Answer | None]
"""What happens instead: an answer, or None if the handler has dealt with the connection itself."""


def stamp(at: float) -> str:
    """A time as the engine writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


class FakeDocker:
    """Use it in a ``with`` block; `url` is what ``DOCKER_HOST`` would say."""

    def __init__(self, *, ahead: float = 0.0, api_version: str = "1.41") -> None:
        self.ahead = ahead  # s, of its clock before ours
        self.api_version = api_version
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("containers", "networks", "volumes", "images")
        }
        self.seen: list[str] = []
        self.faults: list[tuple[str, int, Fault]] = []
        self.released = threading.Event()
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name) / "docker.sock"
        self.url = f"unix://{self._path}"

    def __enter__(self) -> Self:
        engine = self

        class Bound(Handler):
            docker = engine

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(str(self._path), Bound)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._directory.cleanup()

    # --- what is there -------------------------------------------------------------------------------

    def add(self, kind: str, name: str, *, made: float | None = None, **details: Any) -> str:
        """One more object; its id. `made` is by our clock, now if nothing is said."""
        made = (time.time() if made is None else made) + self.ahead
        key = name if kind == "volumes" else f"{len(self.seen) + len(self.objects[kind]):02x}{'0' * 62}"
        labels = details.pop("labels", {})
        found = {"Id": key, "Name": name, "Names": [f"/{name}"], "Labels": labels, "Created": stamp(made)}
        match kind:
            case "containers":
                found |= {"Config": {"Labels": labels}, "Image": "sha256:none", "State": {"Running": True}}
            case "volumes":
                found |= {"Driver": "local", "Mountpoint": "/nowhere/_data", "CreatedAt": stamp(int(made))}
            case "images":
                found |= {"Config": {"Labels": labels}, "RepoTags": [name], "Parent": ""}
        self.objects[kind][key] = found | details
        return key

    def fail(self, request: str, fault: Fault, times: int = 1) -> None:
        """The next so many requests that match, like ``DELETE /containers/.*``, meet `fault`."""
        self.faults.append((request, times, fault))

    def fault_for(self, request: str) -> Fault | None:
        for index, (pattern, times, fault) in enumerate(self.faults):
            if re.fullmatch(pattern, request):
                if times > 1:
                    self.faults[index] = pattern, times - 1, fault
                else:
                    del self.faults[index]
                return fault
        return None

    # --- answers -------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str]) -> Answer:
        if path == "/version":
            return 200, {"ApiVersion": self.api_version, "MinAPIVersion": "1.12"}
        if path == "/info":
            return 200, {"SystemTime": stamp(time.time() + self.ahead)}
        kind, _, rest = path.lstrip("/").partition("/")
        if kind not in self.objects:
            return 404, {"message": "page not found"}
        if rest == "create":
            return 201, {"Id": self.add(kind, query["name"], labels=LABEL)}
        if rest.endswith("/start"):
            return 204, None
        if rest in ("", "json"):
            found = list(self._selected(kind, json.loads(query.get("filters", "{}"))))
            return 200, {"Volumes": found} if kind == "volumes" else found
        key = self._find(kind, unquote(rest.removesuffix("/json").removesuffix("/wait")))
        if key is None:
            return 404, {"message": f"No such {kind[:-1]}: {rest}"}
        if method == "DELETE":
            return self._delete(kind, key, unquote(rest))
        if rest.endswith("/wait"):
            del self.objects[kind][key]
            return 200, {"StatusCode": 0}
        return 200, self.objects[kind][key]

    def _selected(self, kind: str, filters: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
        """By what users of a network, volume or image say in ``uses``."""
        wanted = {value for name in ("network", "volume", "ancestor") for value in filters.get(name, ())}
        for found in self.objects[kind].values():
            if wanted & set(found.get("uses", ())):
                yield found

    def _find(self, kind: str, ref: str) -> str | None:
        for key, found in self.objects[kind].items():
            if ref in (key, key[:12], found["Name"], *(found.get("RepoTags") or ())):
                return key
        return None

    def _delete(self, kind: str, key: str, ref: str) -> Answer:
        tags = self.objects[kind][key].get("RepoTags") or []
        if ref in tags:
            tags.remove(ref)
        if not tags or ref == key:
            del self.objects[kind][key]
        return (200, [{"Untagged": ref}]) if kind == "images" else (204, None)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    docker: FakeDocker
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        path = re.sub(r"^/v[\d.]+", "", url.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.docker.seen.append(f"{self.command} {path}")
        fault = self.docker.fault_for(f"{self.command} {path}")
        answer = self.docker.answer(self.command, path, query) if fault is None else fault(self)
        if answer is not None:
            status, body = answer
            raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that the base class calls

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def answers(status: int, message: str) -> Fault:
    """The engine refuses, in its own words."""
    return lambda handler: (status, {"message": message})


def hangs(handler: Handler) -> None:
    """No answer for as long as the engine is up."""
    handler.docker.released.wait(60)
    handler.close_connection = True


def dies(handler: Handler) -> None:
    """The connection breaks off within the answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"Id": ')
    handler.close_connection = True


def babbles(handler: Handler) -> Answer:
    """What it says is no JSON."""
    return 200, b"<html>I am a proxy</html>"
