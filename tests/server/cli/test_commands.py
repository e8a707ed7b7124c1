"""The commands that ask a running server, in front of a real one."""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from thunder_server.cli.tables import programs_table

from ..http.fake_engine import FakeEngine, Reply, Seen
from ..http.whole import BACKENDS, PROGRAMS, Whole, whole
from .harness import Background, thunder

KEY = "s3cret"


@dataclass
class Scene:
    """One server with one engine behind it, and what happened there before."""

    background: Background
    server: Whole
    engine: FakeEngine

    def thunder(self, *words: str):
        return thunder(*words, THUNDER_BASE_URL=self.server.url, THUNDER_API_KEY=KEY)


@pytest.fixture(scope="module")
def background() -> Generator[Background]:
    background = Background()
    yield background
    background.close()


@pytest.fixture(scope="module")
def scene(background: Background) -> Generator[Scene]:
    with (
        background.entered(FakeEngine) as engine,
        background.entered(lambda: whole([engine], api_key=(KEY,))) as server,
    ):
        scene = Scene(background, server, engine)
        ask = server.ask
        headers = {"x-api-key": KEY}
        body = {"name": "[bold]fix\x1b[2Jbug", "group": "g", "lease_s": 1000}
        background.run(ask("PUT", f"{PROGRAMS}/live", body, headers=headers))
        background.run(ask("PUT", f"{PROGRAMS}/over", headers=headers))
        background.run(ask("DELETE", f"{PROGRAMS}/over", headers=headers))
        yield scene


# --- programs ------------------------------------------------------------------------------------------


def test_programs_are_listed_for_people(scene: Scene) -> None:
    result = scene.thunder("programs")
    assert result.exit_code == 0
    live = next(line for line in result.stdout.splitlines() if line.split()[:1] == ["live"])
    assert "active" in live
    assert "16m" in live
    assert "[bold]fix�[2Jbug" in live  # neither markup nor a command to the terminal
    assert "over" in result.stdout


def test_programs_are_listed_for_scripts(scene: Scene) -> None:
    listed = json.loads(scene.thunder("programs", "--json", "--status", "active", "--group", "g").stdout)
    assert [program["id"] for program in listed["programs"]] == ["live"]
    assert scene.thunder("programs", "--group", "none").stdout == "No such programs.\n"


def test_one_program_is_shown(scene: Scene) -> None:
    result = scene.thunder("programs", "show", "live")
    assert "lease_s" in result.stdout
    assert json.loads(scene.thunder("programs", "show", "live", "--json").stdout)["group"] == "g"


def test_a_program_is_closed(scene: Scene) -> None:
    scene.background.run(scene.server.ask("PUT", f"{PROGRAMS}/closed-by-hand", headers={"x-api-key": KEY}))
    result = scene.thunder("programs", "close", "closed-by-hand", "--outcome", "dropped")
    assert (result.exit_code, result.stdout) == (0, "closed-by-hand: terminated\n")
    shown = json.loads(scene.thunder("programs", "show", "closed-by-hand", "--json").stdout)
    assert shown["outcome"] == "dropped"


def test_closing_what_is_not_there_says_so(scene: Scene) -> None:
    result = scene.thunder("programs", "close", "nobody")
    assert result.exit_code == 0
    assert result.stdout.startswith("nobody: not known here")


def _headings(width: int, **changes: object) -> list[str]:
    program: dict[str, Any] = {
        "id": "prg_" + 32 * "0",
        "name": "agent-7",
        "status": "active",
        "outcome": None,
        "closing": False,
        "phase": "acting",
        "expects_call": False,
        "acting": [{"tool": "bash"}],
        "backend": "127.0.0.1:8000",
        "tokens": {"context": 1700},
        "calls": {"total": 2, "waiting": 0},
        "wait": {"total_s": 0.0},
        "lease_left_s": 60.0,
    }
    table = programs_table([program | changes], width)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    assert "name" in changes or "…" not in console.export_text()
    return [str(column.header) for column in table.columns]


def test_a_narrow_terminal_cuts_columns_and_not_what_they_say() -> None:
    assert _headings(80) == ["program", "name", "status", "phase", "context"]
    assert _headings(69) == ["program", "status", "phase"]
    assert _headings(200)[-1] == "lease"
    assert _headings(110, id="run-1")[-1] == "lease"
    assert "name" in _headings(90, name=200 * "n", id="run-1")


def test_why_tells_the_story(scene: Scene) -> None:
    result = scene.thunder("why", "live")
    assert result.exit_code == 0
    assert result.stdout.startswith("live is active: ")
    assert "It waits for its next call" in result.stdout
    assert json.loads(scene.thunder("why", "live", "--json").stdout)["status"] == "active"


def test_top_shows_it_all_once_without_a_terminal(scene: Scene) -> None:
    result = scene.thunder("top")
    assert result.exit_code == 0
    assert scene.engine.id in result.stdout
    assert "1 active" in result.stdout
    assert set(json.loads(scene.thunder("top", "--json").stdout)) == {"backends", "programs"}


# --- backends ------------------------------------------------------------------------------------------


def test_backends_are_listed_changed_and_removed(scene: Scene) -> None:
    result = scene.thunder("backends")
    assert result.exit_code == 0
    assert "healthy" in result.stdout
    assert "16.4k" in result.stdout
    with scene.background.entered(FakeEngine) as engine:
        added = scene.thunder("backends", "add", engine.url + "/v1", "--weight", "2")
        assert (added.exit_code, added.stdout.split(":")[0]) == (0, "127.0.0.1")
        listed = json.loads(scene.thunder("backends", "--json").stdout)["backends"]
        assert {backend["id"] for backend in listed} == {scene.engine.id, engine.id}
        assert "draining" in scene.thunder("backends", "drain", engine.id, "--timeout", "1").stdout
        removed = scene.thunder("backends", "remove", engine.id)
        assert (removed.exit_code, removed.stdout) == (0, f"{engine.id}: removed\n")
    assert list(scene.server.runtime.backends) == [scene.engine.id]


# --- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["programs", "show", "nobody"], 1, "There is no program 'nobody'"),
        (["why", "nobody"], 1, "There is no program 'nobody'"),
        (["backends", "remove", "h:1"], 1, "There is no backend 'h:1'"),
        (["backends", "remove", "../programs/live"], 1, "There is no backend '../programs/live'"),
        (["backends", "add", "gpu:8000"], 1, "did you mean http://gpu:8000 ?"),
        (["programs", "--status", "asleep"], 2, "--status: 'asleep' is none; there are active"),
        (["programs", "close", "live", "--outcome", "won"], 2, "--outcome: 'won' is none"),
        (["why", "a b"], 2, "'a b' is no program id"),
        (["programs", "show", ".."], 2, "'..' is no program id"),
        (["programs", "--server", "localhost:8300"], 2, "--server: 'localhost:8300' is no http(s) URL"),
        (["programs", "--api-key", "é"], 2, "--api-key: a key must be visible ASCII"),
        (["programs", "--api-key", "wrong"], 1, "wants a key; give it with --api-key"),
    ],
)
def test_failures_are_one_line_and_change_nothing(
    scene: Scene, words: list[str], code: int, complaint: str
) -> None:
    result = scene.thunder(*words)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert result.stderr.startswith("thunder: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    status, program = scene.background.run(
        scene.server.ask("GET", f"{PROGRAMS}/live", headers={"x-api-key": KEY})
    )
    assert (status, program["status"]) == (200, "active")


@pytest.mark.parametrize("words", [["programs"], ["backends"], ["why", "p"], ["top"], ["top", "--json"]])
def test_without_a_server_commands_say_how_to_get_one(words: list[str]) -> None:
    result = thunder(*words, "--server", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing answers at http://127.0.0.1:9; start a server with `thunder serve`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_something_else_at_the_address_is_recognised(background: Background) -> None:
    with background.entered(FakeEngine) as engine:
        result = thunder("programs", "--server", engine.url)
        assert result.exit_code == 1
        assert "not as a thunder server does" in result.stderr


@pytest.mark.parametrize(
    "words", [[], ["nonsense"], ["programs", "--nonsense"], ["backends", "add"], ["why"]]
)
def test_wrong_usage_is_exit_2(words: list[str]) -> None:
    assert thunder(*words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [[], ["serve"], ["programs"], ["backends"], ["backends", "add"], ["why"], ["top"], ["doctor"]],
)
def test_help_comes_with_examples(words: list[str]) -> None:
    result = thunder(*words, "--help")
    assert result.exit_code == 0
    if words:
        assert "Example" in result.stdout


# --- doctor --------------------------------------------------------------------------------------------


def diagnosis(*words: str, **environ: str) -> tuple[int, dict[str, str], str]:
    """Exit code, result by check, and the last advice."""
    result = thunder("doctor", "--json", *words, **environ)
    told = json.loads(result.stdout)
    assert told["ok"] == (result.exit_code == 0)
    last = told["checks"][-1]
    return (
        result.exit_code,
        {one["check"]: one["result"] for one in told["checks"]},
        f"{last['detail']} → {last['advice']}",
    )


def test_doctor_finds_a_healthy_server(scene: Scene) -> None:
    calls = len(scene.engine.seen)
    result = scene.thunder("doctor")
    assert result.exit_code == 0
    assert "was seen: 1 call, 100 prompt tokens" in result.stdout
    assert scene.engine.seen[calls].json["max_tokens"] == 1
    assert len(scene.engine.seen) == calls + 1
    code, checks, _ = diagnosis(THUNDER_BASE_URL=scene.server.url, THUNDER_API_KEY=KEY)
    assert code == 0
    assert set(checks.values()) == {"ok"}


def test_doctor_without_a_server_or_a_key(scene: Scene) -> None:
    assert diagnosis("--server", "http://127.0.0.1:9")[:2] == (1, {"server": "failed"})
    code, checks, advice = diagnosis("--server", scene.server.url)
    assert (code, checks) == (1, {"server": "ok", "key": "failed"})
    assert "--api-key" in advice


def test_doctor_before_something_else(background: Background) -> None:
    with background.entered(FakeEngine) as engine:
        code, checks, advice = diagnosis("--server", engine.url)
        assert (code, checks) == (1, {"server": "ok", "key": "failed"})
        assert "not as a thunder server does" in advice
        engine.pages["/healthz"] = lambda seen, reply: reply.json({}, 404)
        code, checks, advice = diagnosis("--server", engine.url)
        assert (code, checks) == (1, {"server": "failed"})
        assert "check --server" in advice


def test_doctor_without_engines(background: Background) -> None:
    with background.entered(whole) as server:
        code, checks, advice = diagnosis("--server", server.url)
        assert (code, checks["backends"]) == (1, "failed")
        assert "thunder backends add" in advice


def test_doctor_with_a_dead_engine(background: Background) -> None:
    with background.entered(FakeEngine) as engine, background.entered(lambda: whole([engine])) as server:
        url = engine.url
        background.run(engine.stop())
        background.run(server.until(lambda: not server.runtime.healthy_backends, 10))
        code, checks, advice = diagnosis("--server", server.url)
        assert (code, checks[f"backend {engine.id}"]) == (1, "failed")
        assert f"curl {url}/health" in advice


def test_doctor_warns_of_unknown_capacity_and_missing_usage(background: Background) -> None:
    async def without_usage(seen: Seen, reply: Reply) -> None:
        await reply.json({"choices": []})

    with (
        background.entered(lambda: FakeEngine(blocks=None)) as engine,
        background.entered(lambda: whole([engine])) as server,
    ):
        engine.answer = without_usage
        code, checks, _ = diagnosis("--server", server.url)
        assert code == 0
        assert checks[f"backend {engine.id}"] == "warning"
        assert checks["program"] == "warning"


def test_doctor_when_the_engine_refuses(background: Background) -> None:
    async def refuse(seen: Seen, reply: Reply) -> None:
        await reply.json(
            {"error": {"message": "no such adapter", "type": "x", "code": 1, "param": None}}, 400
        )

    with background.entered(FakeEngine) as engine, background.entered(lambda: whole([engine])) as server:
        engine.answer = refuse
        code, checks, advice = diagnosis("--server", server.url)
        assert (code, checks["call"]) == (1, "failed")
        assert "no such adapter" in advice
        code, checks, _ = diagnosis("--server", server.url, "--model", "unheard-of")
        assert (code, checks["call"]) == (1, "failed")


def test_doctor_behind_a_gateway_that_drops_our_headers(background: Background) -> None:
    """The gateway answers as a server would to whom no identity arrived."""
    backend = {"id": "h:1", "url": "http://h:1", "engine": "vllm", "healthy": True, "models": ["m"]}
    page = json.dumps({"backends": [{**backend, "capacity_tokens": 16}]})

    with background.entered(FakeEngine) as gateway:
        gateway.pages |= {"/healthz": "{}", BACKENDS: page}
        code, checks, advice = diagnosis("--server", gateway.url)
        assert (code, checks["call"], checks["identity"]) == (1, "ok", "failed")
        assert "drops X-Thunder-* headers" in advice
