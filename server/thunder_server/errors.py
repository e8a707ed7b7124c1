"""How this server says no: OpenAI-shaped, Anthropic-shaped where Anthropic's API is spoken.

Engines' own errors never come through here; they reach clients as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A refusal of ours, ready to be said.

    ``code`` is what programs branch on, ``message`` tells a person what is wrong and what to do, ``param``
    names the offending field or header.

    >>> ApiError(400, "invalid_request", "'model' is missing.", param="model").openai()["error"]["type"]
    'invalid_request_error'
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code
        self.message: Final = message
        self.param: Final = param
        self.headers: Final = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "code", "param"}}``."""
        kind = _OPENAI_TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}

    def anthropic(self) -> dict[str, Any]:
        """``{"type": "error", "error": {"type", "message"}}``, with our code beside."""
        kind = _ANTHROPIC_TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": self.message, "code": self.code}}

    def body(self, path: str) -> bytes:
        """As JSON, in the shape of the API at ``path``."""
        shape = self.anthropic() if is_anthropic(path) else self.openai()
        return json.dumps(shape).encode()

    def response(self, path: str = "") -> web.Response:
        return web.Response(
            status=self.status, headers=self.headers, body=self.body(path), content_type="application/json"
        )

    def event(self, path: str = "") -> bytes:
        """As the last server-sent event of a stream that has begun."""
        return error_event(self.body(path), path)


def error_event(body: bytes, path: str) -> bytes:
    """One server-sent event with an error ``body`` (JSON without line ends)."""
    return b"event: error\ndata: " + body + b"\n\n" if is_anthropic(path) else b"data: " + body + b"\n\n"


def is_anthropic(path: str) -> bool:
    """Whether Anthropic's API is spoken at this path, ``/p/{id}`` before it or not.

    >>> is_anthropic("/v1/messages"), is_anthropic("/p/a/v1/messages"), is_anthropic("/v1/models")
    (True, True, False)
    """
    return path.startswith("/v1/messages") or (path.startswith("/p/") and "/v1/messages" in path)


def invalid(message: str, param: str | None = None) -> ApiError:
    """400 ``invalid_request``."""
    return ApiError(400, "invalid_request", message, param=param)


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


def method_not_allowed(method: str, allowed: str) -> ApiError:
    return ApiError(
        405, "method_not_allowed", f"{method} is not allowed here; use {allowed}.", headers={"Allow": allowed}
    )


def too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        "request_too_large",
        f"The request body exceeds {limit} bytes; send less, or raise --max-body of the server.",
    )


def internal_error() -> ApiError:
    """500: a fault of ours, of which only the log says more."""
    return ApiError(500, "internal_error", "The server failed; its log says how.")


def from_http(exc: web.HTTPException) -> ApiError:
    """What aiohttp itself refuses (unknown path, wrong method, …), said in our shape."""
    if isinstance(exc, web.HTTPMethodNotAllowed):
        return method_not_allowed(exc.method, ", ".join(sorted(exc.allowed_methods)))
    if isinstance(exc, web.HTTPRequestEntityTooLarge):
        return ApiError(413, "request_too_large", exc.text or "The request body is too large.")
    if isinstance(exc, web.HTTPExpectationFailed):
        return ApiError(
            417, "invalid_request", "The only Expect that can be met is 100-continue.", param="Expect"
        )
    if exc.status == 404:
        return not_found("There is nothing at this path; see /v1/models or /healthz.")
    return ApiError(exc.status, "invalid_request" if exc.status < 500 else "internal_error", exc.reason)
