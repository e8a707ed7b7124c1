"""What the commands that ask a running server share: where it is, how to ask, what to say when it does not
answer. Every failure is one line on stderr that says what to do next, and exit 1 (2 for wrong usage)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from thunder_sdk import wire

if TYPE_CHECKING:
    import httpx

ServerOption = Annotated[
    str,
    typer.Option("--server", envvar="THUNDER_BASE_URL", metavar="URL", help="Root of the thunder server."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="THUNDER_API_KEY", metavar="KEY", help="A key of the server, if it has any."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print what the server says as JSON, for scripts.")]
DEFAULT_SERVER: Final = wire.DEFAULT_BASE_URL
_TIMEOUT_S: Final = 10.0


def fail(message: str, code: int = 1) -> NoReturn:
    """End the command: ``message`` on stderr, exit 1 (failed) or 2 (wrong usage)."""
    typer.echo(f"thunder: {message}", err=True)
    raise typer.Exit(code)


class AnswerError(Exception):
    """The server, or whoever listens there, did not give what was asked for; the text says what to do."""


@contextmanager
def asking(server: str, key: str | None) -> Iterator[Api]:
    """A server to ask; an `AnswerError` out of the block is the end of the command."""
    api = Api(server, key)
    try:
        yield api
    except AnswerError as wrong:
        fail(str(wrong))
    finally:
        api.http.close()


class Api:
    """A thunder server as the commands see it. Methods raise `AnswerError`; a bad URL exits 2 at once."""

    def __init__(self, server: str, key: str | None) -> None:
        try:
            self.root = wire.root_url(server)
        except ValueError as wrong:
            fail(f"--server: {wrong}", 2)
        import httpx

        headers = {} if key is None else {wire.API_KEY: key}
        try:
            # Straight to the server: a proxy from the environment is for other traffic.
            self.http = httpx.Client(headers=headers, trust_env=False)
        except (UnicodeError, ValueError):
            fail("--api-key: a key must be visible ASCII, as it travels in a header", 2)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer to one request, whatever its status."""
        import httpx

        limits = httpx.Timeout(timeout or _TIMEOUT_S, connect=3.0)
        try:
            return self.http.request(
                method, self.root + path, params=params, json=body, headers=headers, timeout=limits
            )
        except httpx.ConnectError:
            raise AnswerError(
                f"nothing answers at {self.root}; start a server with `thunder serve`, or say with --server "
                "where it is"
            ) from None
        except httpx.TimeoutException:
            raise AnswerError(f"{self.root} does not answer in time; see its log, or try again") from None
        except httpx.HTTPError as broken:
            raise AnswerError(
                f"no HTTP answer from {self.root} ({broken}); is that a thunder server?"
            ) from None

    def control(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        holding: str = "id",
        timeout: float | None = None,
    ) -> Any:
        """What the control plane answers: an object that holds this key."""
        answer = self.ask(method, wire.CONTROL_PREFIX + path, params=params, body=body, timeout=timeout)
        return self.json(answer, holding)

    def json(self, answer: httpx.Response, holding: str) -> Any:
        """The answer's JSON, if it is a good one of a thunder server."""
        if answer.status_code in (401, 403):
            raise AnswerError(f"{self.root} wants a key; give it with --api-key or THUNDER_API_KEY")
        try:
            value = answer.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            value = None
        if not isinstance(value, dict):
            value = {}
        if answer.is_success and holding in value:
            return value
        error = value.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            raise AnswerError(error["message"])
        raise AnswerError(
            f"{self.root} answered {answer.status_code}, not as a thunder server does; is --server right?"
        )


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
