"""Which models there are: the union over all backends, and whether a model is one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web

from thunder_server.backends.poller import Poller
from thunder_server.backends.reading import Model
from thunder_server.errors import ApiError
from thunder_server.refusals import no_backend
from thunder_server.runtime import Runtime


class Models:
    """``/v1/models``, and the check behind 404 ``model_not_found``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def answer(self, model: str) -> web.Response:
        """The list, or with a ``model`` its one entry. Raises `ApiError`."""
        if not self._runtime.healthy_backends:
            raise no_backend()
        await self._refresh(self._runtime.healthy_backends.values())
        union: dict[str, Model] = {}
        for backend in self._runtime.healthy_backends.values():
            for key, entry in (backend.models or {}).items():
                union.setdefault(key, entry)
        if not model:
            return web.json_response({"object": "list", "data": list(union.values())})
        if model not in union:
            raise self._unknown(model)
        return web.json_response(union[model])

    async def require(self, model: str) -> None:
        """`ApiError` 404 if every backend's fresh list lacks ``model``. An unknown list lacks nothing."""
        if self._lacking(model) and (healthy := self._runtime.healthy_backends):
            await self._refresh(healthy.values())
            if self._lacking(model) and self._runtime.healthy_backends:
                raise self._unknown(model)

    def _lacking(self, model: str) -> bool:
        return all(
            backend.models is not None and model not in backend.models
            for backend in self._runtime.backends.values()
        )

    async def _refresh(self, backends: Iterable[Poller]) -> None:
        asked = list(backends)
        await asyncio.gather(*(backend.refresh_models() for backend in asked))
        for backend in asked:
            if backend.spec.id in self._runtime.backends and backend.healthy:
                self._runtime.post(backend.reading())

    def _unknown(self, model: str) -> ApiError:
        known = {key for backend in self._runtime.backends.values() for key in backend.models or ()}
        listed = ", ".join(sorted(known)[:20]) or "none"
        return ApiError(
            404,
            "model_not_found",
            f"The model {model[:200]!r} is served by no backend; there are {listed}.",
            param="model",
        )
