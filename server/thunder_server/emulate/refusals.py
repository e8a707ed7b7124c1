"""Every refusal in the shape of the API that was called: OpenAI's, with vLLM's types, or Anthropic's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from thunder_server.emulate.requests import ApiError


@web.middleware
async def refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except RecursionError:
        refusal = ApiError(400, "The body is nested too deeply.")
    except web.RequestPayloadError as error:
        refusal = ApiError(400, f"The body cannot be read: {error}")
    except web.HTTPException as error:
        refusal = ApiError(error.status, f"{error.reason}: {request.method} {request.path}")
    except ConnectionError:
        return web.Response()  # the client is gone: nobody reads it
    shape = _as_anthropic if request.path.startswith("/v1/messages") else _as_openai
    return web.json_response(shape(refusal), status=refusal.status)


def _as_openai(refusal: ApiError) -> dict[str, Any]:
    kind = "NotFoundError" if refusal.status == 404 else "BadRequestError"
    return {
        "error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.status}
    }


def _as_anthropic(refusal: ApiError) -> dict[str, Any]:
    kind = "not_found_error" if refusal.status == 404 else "invalid_request_error"
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}
