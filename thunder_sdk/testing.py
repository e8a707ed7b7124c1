"""Fakes for tests of agents: a recording server on a real socket, and sources of time and ids.

``pytest_plugins = ["thunder_sdk.pytest_plugin"]`` makes fixtures of them.

Example::

    with RecordingServer() as server, use_sdk(base_url=server.url):
        run_my_agent()
        thunder.flush()
    assert [p.outcome for p in server.programs.values()] == ["success"]
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from thunder_sdk import _context, _process, wire
from thunder_sdk._config import Config
from thunder_sdk._pulse import Pulse
from thunder_sdk._sources import Sources, SystemSources

__all__ = [
    "FakeProgram",
    "FakeSources",
    "RecordedRequest",
    "RecordingServer",
    "Sources",
    "SystemSources",
    "use_sdk",
]

_PROGRAM = re.compile(r"/thunder/v1/programs/([^/]+)")
_ENVIRONMENT = re.compile(r"/thunder/v1/programs/([^/]+)/environment")
_COMPLETIONS = re.compile(r"(?:/p/([^/]+))?/v1/chat/completions")


class FakeSources:
    """Time that stands still until it is told to go on, and ids that count.

    Leases, back-off and heartbeats follow it; waiting for another thread (`flush`, `close`) does not.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start
        self._ids = itertools.count(1)

    def wall(self) -> float:
        """Unix seconds."""
        return self.now

    def monotonic(self) -> float:
        """The same time."""
        return self.now

    def new_hex(self) -> str:
        """``000…1``, ``000…2`` and so on, 32 digits each."""
        return f"{next(self._ids):032x}"

    def advance(self, seconds: float) -> None:
        """Lets `seconds` pass, and the sender notice."""
        self.now += seconds
        _process.here().sender.ring()


@contextmanager
def use_sdk(
    base_url: str | None = None,
    *,
    sources: Sources | None = None,
    threaded: bool = True,
    patience: float = 30.0,
    environ: Mapping[str, str] = os.environ,
    **settings: Any,
) -> Iterator[_process.Process]:
    """The SDK set up afresh inside the block, with the arguments of `init`; as it was before after it.

    No program is current in it at first. Entering and closing wait for the server for up to `patience`
    seconds, not 2: a busy machine spoils no test. Without `threaded` nothing is sent until `flush` or `close`
    does it in their caller's thread.
    """
    config = Config.resolve(environ, base_url, **settings)
    sources = sources or SystemSources()
    process = _process.Process(config, sources, Pulse(), threaded=threaded, patience=patience)
    before = _process.install(process)
    context = _context.Fresh()
    try:
        yield process
    finally:
        _process.here().sender.stop()
        _process.install(before)
        context.restore()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request as it arrived; header names in lower case, `body` decoded if it was JSON."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class FakeProgram:
    """What the fake server knows of a program."""

    id: str
    generation: int = 1
    status: str = "active"
    phase: str = "acting"
    outcome: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    environment: dict[str, Any] = field(default_factory=lambda: {"state": "preparing", "reason": "scripted"})

    def answer(self) -> dict[str, Any]:
        """As the control plane shows it."""
        return {
            "id": self.id,
            "generation": self.generation,
            "status": self.status,
            "phase": self.phase,
            "outcome": self.outcome,
        }


class RecordingServer:
    """A thunder server reduced to its wire: keeps programs, records requests, answers chat completions.

    Scripts: `fail_next` holds statuses to answer with, `reply` the text of completions; `gate` holds every
    request until it is set. `api_key` makes the control plane demand it.
    """

    def __init__(self, *, api_key: str | None = None, reply: str = "Hello from the fake.") -> None:
        self.api_key = api_key
        self.reply = reply
        self.fail_next: deque[int] = deque()
        self.redirect_to: str | None = None
        self.identifies = True
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[RecordedRequest] = []
        self.programs: dict[str, FakeProgram] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="recording-server", daemon=True
        )

    @property
    def url(self) -> str:
        """Its root, like ``http://127.0.0.1:45678``."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def wait_for(self, condition: Callable[[RecordingServer], object], timeout: float = 10.0) -> None:
        """Blocks until `condition` holds; AssertionError with what arrived if it does not in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                seen = [f"{r.method} {r.path} {r.body}" for r in self.requests]
                raise AssertionError(f"not within {timeout:g} s; arrived: {seen}")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every event taken, in order."""
        return [
            event
            for request in list(self.requests)
            if request.path == wire.EVENTS_PATH and isinstance(request.body, dict)
            for event in request.body["events"]
        ]

    @property
    def calls(self) -> list[RecordedRequest]:
        """The LLM calls."""
        return [request for request in list(self.requests) if _COMPLETIONS.fullmatch(request.path)]

    def settle_environment(self, program_id: str, **state: Any) -> None:
        """Has a program's environment be so: ``state="ready", container_id="c1"``, or ``"failed"``."""
        with self._changed:
            self.programs[program_id].environment = state
            self._changed.notify_all()

    def terminate(self, program_id: str, outcome: str) -> None:
        """Ends a program as an operator or a lease would."""
        with self._changed:
            self.programs[program_id].status, self.programs[program_id].outcome = "terminated", outcome

    # --- handling, one thread per connection -------------------------------------------------------------

    def take(self, request: RecordedRequest) -> tuple[int, Any, dict[str, str]]:
        """Records `request`; status, JSON body and headers of the answer."""
        self.gate.wait()
        with self._changed:
            self.requests.append(request)
            try:
                return self._answer(request)
            finally:
                self._changed.notify_all()

    def _answer(self, request: RecordedRequest) -> tuple[int, Any, dict[str, str]]:
        if self.fail_next:
            status = self.fail_next.popleft()
            return status, {"error": {"message": f"scripted {status}"}}, {}
        completion = _COMPLETIONS.fullmatch(request.path)
        if completion and self.redirect_to is not None:
            return 307, {}, {"Location": self.redirect_to}
        if completion:
            return self._complete(request, completion.group(1))
        if not request.path.startswith(wire.CONTROL_PREFIX):
            return 404, {"error": {"message": f"no {request.path} here"}}, {}
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return 401, {"error": {"message": "wrong key"}}, {}
        if request.path == wire.EVENTS_PATH:
            return 200, self._take_events(request.body), {}
        environment = _ENVIRONMENT.fullmatch(request.path)
        if environment:
            return self._show_environment(environment.group(1), float(request.query.get("wait_s", 0)))
        named = _PROGRAM.fullmatch(request.path)
        if named is None:
            return 404, {"error": {"message": f"no {request.path} here"}}, {}
        return self._take_program(request, named.group(1))

    def _complete(self, request: RecordedRequest, path_id: str | None) -> tuple[int, Any, dict[str, str]]:
        program_id = path_id or request.headers.get(wire.PROGRAM_ID.lower())
        headers = {}
        if program_id is not None:
            self._live(program_id).calls += 1
            if self.identifies:
                headers[wire.PROGRAM_ID] = program_id
        message = {"role": "assistant", "content": self.reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        common = {"id": "chatcmpl-fake", "created": 0, "model": request.body.get("model", "fake")}
        if not request.body.get("stream"):
            return 200, {**common, "object": "chat.completion", "choices": [choice], "usage": usage}, headers
        chunks = [
            {
                **common,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
            }
            for word in re.findall(r"\S+\s*", self.reply)
        ]
        lines = [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]
        return 200, "".join(lines), {**headers, "Content-Type": "text/event-stream"}

    def _show_environment(self, program_id: str, wait_s: float) -> tuple[int, Any, dict[str, str]]:
        program = self.programs.get(program_id)
        if program is None:
            return 404, {"error": {"message": f"no program {program_id} here"}}, {}
        self._changed.notify_all()
        self._changed.wait_for(lambda: program.environment["state"] != "preparing", wait_s)
        return 200, program.environment, {}

    def _take_program(self, request: RecordedRequest, program_id: str) -> tuple[int, Any, dict[str, str]]:
        if request.method == "PUT":
            known = self.programs.get(program_id)
            program = self._live(program_id)
            program.fields.update(request.body)
            return 200 if known is program else 201, program.answer(), {}
        program = self.programs.setdefault(program_id, FakeProgram(program_id))
        meant = int(request.query.get("generation", program.generation))
        if request.method == "DELETE" and program.status != "terminated" and program.generation <= meant:
            program.status, program.outcome = "terminated", request.query.get("outcome", "success")
        return 200, program.answer(), {}

    def _take_events(self, body: dict[str, Any]) -> dict[str, Any]:
        touched = {}
        for event in body["events"]:
            program_id = event["program_id"]
            program = self.programs.setdefault(program_id, FakeProgram(program_id))
            touched[program_id] = program
            key = (program_id, body["emitter"])
            if event["seq"] > self._seen.get(key, 0) and program.status != "terminated":
                self._seen[key] = event["seq"]
                program.events.append(event)
        return {"programs": {name: program.answer() for name, program in touched.items()}, "errors": []}

    def _live(self, program_id: str) -> FakeProgram:
        program = self.programs.get(program_id)
        if program is None or program.status == "terminated":
            generation = 1 if program is None else program.generation + 1
            program = self.programs[program_id] = FakeProgram(program_id, generation)
        return program


def _handler_for(server: RecordingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            url = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, body, headers = server.take(
                RecordedRequest(
                    method=self.command,
                    path=url.path,
                    query={key: values[-1] for key, values in parse_qs(url.query).items()},
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=json.loads(raw) if raw else None,
                )
            )
            sent = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Tests read `requests`, not a log."""

    return Handler
