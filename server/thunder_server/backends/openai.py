"""Any server that speaks the OpenAI API: it says whether it lives and what it serves, nothing of memory."""

from __future__ import annotations

from thunder_server.backends.reading import Get, Load


class OpenAIEngine:
    """Lives while ``/v1/models``, or else ``/health``, is answered. Its capacity is the operator's word."""

    async def alive(self, get: Get) -> bool:
        answer = await get("/v1/models")
        if answer is not None and answer.status in (404, 405):
            answer = await get("/health")
        return answer is not None and answer.status < 500

    async def load(self, get: Get) -> Load | None:
        return None
