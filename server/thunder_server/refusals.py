"""What a client is told when the core, the runtime or a backend ends its call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, assert_never

from thunder_sdk import wire
from thunder_server.calls import Cut
from thunder_server.core.decisions import Cancel, Refusal, Refuse
from thunder_server.errors import ApiError
from thunder_server.upstream import BackendTimedOut, UpstreamError

_STATUS: Final[Mapping[Refusal, int]] = {
    Refusal.NO_BACKEND: 503,
    Refusal.ADMISSION_TIMEOUT: 503,
    Refusal.BACKEND_ERROR: 502,
    Refusal.PROGRAM_TERMINATED: 409,
    Refusal.SUPERSEDED: 409,
}
_RETRY_AFTER_S: Final = 1.0


def of_decision(decision: Refuse | Cancel) -> ApiError:
    """The core said no."""
    status = _STATUS[decision.refusal]
    headers: dict[str, str] = {}
    if status == 409:
        headers[wire.SHOULD_RETRY] = "false"
    elif status == 503:
        wait = decision.retry_after_s if isinstance(decision, Refuse) else None
        headers["Retry-After"] = str(math.ceil(_RETRY_AFTER_S if wait is None else max(wait, 1.0)))
    return ApiError(status, decision.refusal.value, decision.message, headers=headers)


def of_cut(cut: Cut) -> ApiError:
    """The runtime ended the call."""
    match cut:
        case Cut.BACKEND_REMOVED | Cut.DRAIN_TIMEOUT:
            return ApiError(502, "backend_error", cut.value)
        case Cut.BACKEND_STALLED:
            return ApiError(504, "backend_timeout", cut.value)
        case Cut.SERVER_STOPPING:
            return ApiError(503, "shutting_down", cut.value, headers={"Retry-After": "1"})
        case Cut.CORE_FAILED:
            return ApiError(500, "internal_error", cut.value)
    assert_never(cut)


def of_failure(failure: UpstreamError) -> ApiError:
    """The backend failed."""
    if isinstance(failure, BackendTimedOut):
        return ApiError(504, "backend_timeout", str(failure))
    return ApiError(502, "backend_error", str(failure))


def no_backend() -> ApiError:
    return ApiError(
        503, "no_backend", "No backend answers; see GET /thunder/v1/backends.", headers={"Retry-After": "1"}
    )
