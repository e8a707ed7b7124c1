"""``thunder doctor``: does a program's identity arrive, end to end?

Each check stands on the ones before it; the first that fails says what to do next and ends the visit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from thunder_sdk import wire
from thunder_server.cli.api import (
    DEFAULT_SERVER,
    AnswerError,
    Api,
    JsonOption,
    KeyOption,
    ServerOption,
    asking,
    print_json,
)
from thunder_server.cli.tables import make_console, plain

if TYPE_CHECKING:
    import httpx

CALL_S: Final = 120.0
"""How long the one tiny call may take: a cold engine compiles before it answers."""
WAIT_S: Final = 20
"""How long it may wait for its turn."""
_MARKS: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``advice`` is what to do next, if anything."""

    check: str
    result: str  # ok | warning | failed
    detail: str
    advice: str | None = None


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        epilog="Examples: thunder doctor · thunder doctor --server http://gpu1:8300 --model my-model",
    )(doctor)


def doctor(
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whom to send the one call; default: the first model.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a server from the outside: is it there, are its engines, and does identity arrive?

    Sends one call of one token, as a program of its own. Exit 0 if all is well, 1 if something failed.
    """
    findings = []
    with asking(server, api_key) as api:
        for finding in examine(api, model):
            findings.append(finding)
            if not as_json:
                make_console().print(_line(finding), soft_wrap=True)
    failed = any(finding.result == "failed" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    if failed:
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    mark, style = _MARKS[finding.result]
    line = Text.assemble((f"{mark} ", style), (f"{finding.check}: ", "bold"), plain(finding.detail))
    if finding.advice:
        line.append("\n  → ").append_text(plain(finding.advice))
    return line


def examine(api: Api, model: str | None) -> Iterator[Finding]:
    """The findings, as they come; nothing follows a failed one."""
    checks = (_server, _key, _backends, _identity)
    for check in checks:
        for finding in check(api, model):
            yield finding
            if finding.result == "failed":
                return


def _server(api: Api, model: str | None) -> Iterator[Finding]:
    try:
        answer = api.ask("GET", "/healthz")
    except AnswerError as wrong:
        yield Finding("server", "failed", str(wrong))
        return
    if answer.status_code != 200:
        yield Finding(
            "server",
            "failed",
            f"{api.root} answers {answer.status_code} on /healthz",
            "that is no thunder server, or a proxy in between does not let this path through; check --server",
        )
    else:
        yield Finding("server", "ok", f"answers at {api.root}")


def _key(api: Api, model: str | None) -> Iterator[Finding]:
    try:
        api.control("GET", "/backends", holding="backends")
    except AnswerError as wrong:
        yield Finding("key", "failed", str(wrong))
    else:
        yield Finding(
            "key", "ok", "this key is admitted" if wire.API_KEY in api.http.headers else "none needed"
        )


def _backends(api: Api, model: str | None) -> Iterator[Finding]:
    backends = api.control("GET", "/backends", holding="backends")["backends"]
    if not backends:
        yield Finding(
            "backends", "failed", "there are none", "add one: thunder backends add http://HOST:PORT"
        )
        return
    down = [backend for backend in backends if not backend["healthy"]]
    for backend in backends:
        if not backend["healthy"]:
            yield Finding(
                f"backend {backend['id']}",
                "failed" if len(down) == len(backends) else "warning",
                f"nothing healthy at {backend['url']}",
                "start that engine, or check its URL from the server's machine: "
                f"curl {backend['url']}/{'health' if backend['engine'] == 'vllm' else 'v1/models'}",
            )
        elif backend["capacity_tokens"] is None:
            yield Finding(
                f"backend {backend['id']}",
                "warning",
                "serves, but its KV capacity is unknown, so it is not scheduled by memory",
                "see whether its /metrics is readable, or give the server --capacity-tokens",
            )
        else:
            models = ", ".join(backend["models"] or ()) or "unknown models"
            detail = f"healthy, {models}, {backend['capacity_tokens']:,} tokens of KV"
            yield Finding(f"backend {backend['id']}", "ok", detail)


def _identity(api: Api, model: str | None) -> Iterator[Finding]:
    try:
        name = model or _first_model(api)
    except AnswerError as wrong:
        yield Finding("models", "failed", str(wrong))
        return
    if name is None:
        yield Finding("models", "failed", "no backend lists a model", "load one, or name it with --model")
        return
    program_id = f"doctor_{uuid.uuid4().hex}"
    try:
        answer = _call(api, "/v1", program_id, name, tagged=True)
    except AnswerError as wrong:
        yield Finding("call", "failed", str(wrong), "see `thunder backends` and the server's log")
        return
    if not answer.is_success:
        yield Finding(
            "call",
            "failed",
            f"{name} answered {answer.status_code}: {_said(answer)}",
            _advice(answer.status_code),
        )
        return
    yield Finding("call", "ok", f"{name} answered through {answer.headers.get(wire.BACKEND, 'the server')}")
    if answer.headers.get(wire.PROGRAM_ID) != program_id:
        yield _lost(api, name, answer)
        return
    yield Finding("identity", "ok", f"{wire.PROGRAM_ID} came back as it was sent")
    yield from _seen(api, program_id)


def _first_model(api: Api) -> str | None:
    listed = api.json(api.ask("GET", "/v1/models"), holding="data")["data"] or []
    return next((str(entry["id"]) for entry in listed if isinstance(entry, dict) and "id" in entry), None)


def _call(api: Api, base: str, program_id: str, model: str, *, tagged: bool) -> httpx.Response:
    headers = {wire.FINAL: "true", wire.MAX_WAIT: str(WAIT_S)} | (
        {wire.PROGRAM_ID: program_id} if tagged else {}
    )
    body = {"model": model, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 1}
    return api.ask("POST", f"{base}/chat/completions", body=body, headers=headers, timeout=CALL_S)


def _lost(api: Api, model: str, answer: httpx.Response) -> Finding:
    """The header did not make it; does the path?"""
    came = answer.headers.get(wire.PROGRAM_ID)
    detail = "the answer names no program" if came is None else f"the answer names another program, {came}"
    program_id = f"doctor_{uuid.uuid4().hex}"
    try:
        by_path = _call(api, f"/p/{program_id}/v1", program_id, model, tagged=False)
        works = by_path.headers.get(wire.PROGRAM_ID) == program_id
    except AnswerError:
        works = False
    advice = (
        f"let X-Thunder-* headers through, or give agents {api.root}/p/PROGRAM_ID/v1 as base URL: that works"
        if works
        else "something between here and the server drops X-Thunder-* headers; let them through both ways"
    )
    return Finding("identity", "failed", detail, advice)


def _seen(api: Api, program_id: str) -> Iterator[Finding]:
    try:
        program = api.control("GET", f"/programs/{program_id}")
    except AnswerError as wrong:
        yield Finding("program", "failed", f"the server does not know the call's program: {wrong}")
        return
    prompt = program["tokens"]["prompt"]
    if program["calls"]["total"] != 1:
        yield Finding(
            "program", "failed", f"the server counts {program['calls']['total']} calls where one was made"
        )
    elif not prompt:
        yield Finding(
            "program",
            "warning",
            "was seen, but the engine reported no usage, so its size is only estimated",
            "let the engine report usage (OpenAI's `usage` object)",
        )
    else:
        detail = f"was seen: 1 call, {prompt} prompt tokens, then {program['outcome'] or program['status']}"
        yield Finding("program", "ok", detail)


def _said(answer: httpx.Response) -> str:
    try:
        value: Any = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return answer.text[:200]
    error = value.get("error") if isinstance(value, dict) else None
    return str(error.get("message") if isinstance(error, dict) else value)[:300]


def _advice(status: int) -> str:
    if status in (401, 403):
        return "the engine wants a key of its own: give it to the server as the backend's api_key"
    if status == 404:
        return "name a model that `curl SERVER/v1/models` lists with --model"
    if status == 503:
        return "see with `thunder top` who holds the engines, and try again"
    return "see `thunder backends` and the engine's log"
