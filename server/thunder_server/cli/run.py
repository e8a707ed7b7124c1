"""``thunder run``: a program around any command, for agents that know nothing of us."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from thunder_server.cli.api import (
    DEFAULT_SERVER,
    AnswerError,
    KeyOption,
    ServerOption,
    asking,
    fail,
)

if TYPE_CHECKING:
    from thunder_sdk import Program

_PROBE_S: Final = 2.0
# Where clients look: openai's own, older ones, LiteLLM's for vLLM; Anthropic's adds the /v1 itself.
_OPENAI_URLS: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE")
_ANTHROPIC_URL: Final = "ANTHROPIC_BASE_URL"
_KEYS: Final = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
# What somebody may send us and means for the command.
_FORWARDED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_STOPPING: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
# Python ignores these; a command expects them as they come.
_DEFAULTS: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        context_settings={"allow_interspersed_args": False},
        epilog="Examples: thunder run -- python agent.py --task 7 · "
        "thunder run --group nightly --priority 1 -- ./agent.sh",
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, with its arguments.")],
    name: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A label for people.", show_default="the command's name"),
    ] = None,
    program_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The program's id.", show_default="a fresh one")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="ID", help="What it belongs to: an evaluation.")
    ] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher is served earlier.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="May be repeated.")] = None,
    expected_context: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens its context will reach, if you know.")
    ] = None,
    lease: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds it outlives this command if that is killed.")
    ] = None,
    max_wait: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds a call may wait for its turn.")
    ] = None,
    keep_urls: Annotated[
        bool,
        typer.Option(
            "--keep-urls", help="Leave OPENAI_BASE_URL and the like alone: for commands that use the SDK."
        ),
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """Run a command as one program: its calls go through the server, and its end is the program's.

    The command gets an OPENAI_BASE_URL and an ANTHROPIC_BASE_URL that name the program, and
    THUNDER_PROGRAM_CONTEXT for code that uses the SDK. Signals are handed on. The program succeeds if the
    command exits with 0; it is dropped if that was stopped by a signal. The exit status is the command's.

    Without a server the command runs all the same, with its URLs as they were.
    """
    import thunder_sdk as thunder

    # Before the SDK has threads, so that all of them leave signals to `_wait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    try:
        thunder.init(server, api_key=api_key)
        program = thunder.program(
            name or Path(command[0]).name[:200],
            program_id=program_id,
            group=group,
            priority=priority,
            tags=tag or (),
            expected_context=expected_context,
            lease=lease,
            max_wait=max_wait,
        )
        enabled = bool(program.headers())
        routed = enabled and _answers(server, api_key) and not keep_urls
        with program:
            end = _run(command, _environment(program, api_key, routed=routed))
            program.close(end.outcome)
    except thunder.ThunderConfigError as wrong:
        fail(str(wrong), 2)
    except thunder.ThunderError as failed:
        fail(str(failed))
    raise typer.Exit(end.code)


@dataclass(frozen=True, slots=True)
class _End:
    """How a command ended: what the program and what this process make of it."""

    outcome: str
    code: int


def _answers(server: str, api_key: str | None) -> bool:
    """Whether the server is there; says so if not, once, for the SDK too."""
    with asking(server, api_key) as api:
        try:
            if api.ask("GET", "/healthz", timeout=_PROBE_S).status_code == 200:
                return True
        except AnswerError:
            pass
        logging.getLogger("thunder_sdk").setLevel(logging.ERROR)
        typer.echo(f"thunder: no server answers at {api.root}; the command runs without it", err=True)
        return False


def _environment(program: Program, api_key: str | None, *, routed: bool) -> Mapping[str, str]:
    """The command's environment: the program for the SDK and, if ``routed``, for everybody else."""
    env = program.env()
    if routed:
        env.update(dict.fromkeys(_OPENAI_URLS, program.base_url))
        env[_ANTHROPIC_URL] = program.base_url.removesuffix("/v1")
        for name in _KEYS:
            env[name] = api_key or env.get(name) or "-"  # clients refuse to start with none
    return env


def _run(command: list[str], env: Mapping[str, str]) -> _End:
    try:
        child = os.posix_spawnp(command[0], command, env, setsigmask=(), setsigdef=_DEFAULTS)
    except OSError as error:
        typer.echo(f"thunder: {command[0]}: {error.strerror}", err=True)
        return _End("error", 127 if isinstance(error, FileNotFoundError) else 126)
    status, stopped = _wait(child)
    if os.WIFSIGNALED(status):
        return _End("dropped", 128 + os.WTERMSIG(status))
    code = os.WEXITSTATUS(status)
    if code == 0:
        return _End("success", 0)
    return _End("dropped" if stopped else "error", code)


def _wait(child: int) -> tuple[int, bool]:
    """Its wait status, and whether somebody told it to stop.

    A signal from a terminal reaches the command as well as us; only what was sent to us alone goes on.
    """
    stopped = False
    while True:
        told: Any = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if told.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status, stopped
            continue
        stopped = stopped or told.si_signo in _STOPPING
        if told.si_code <= 0:
            os.kill(child, told.si_signo)
