"""The clock behind the engine: steps take the time the model says, divided by the speed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from thunder_server.simulation.engine import Engine, Request

# Steps due sooner than this run together: an event loop cannot sleep more finely.
_SLEEP_GRAIN = 0.002
# Streams hear of new tokens at most this often, their first and last ones apart. So an accelerated engine
# sends several tokens at once, as a real one does when it is ahead of its clients.
_STREAM_GRAIN = 0.02


class Generation:
    """One request on the device, submitted by entering; leaving aborts it if it still runs."""

    def __init__(self, device: Device, request: Request, *, stream: bool) -> None:
        self.request = request
        self.stream = stream
        self._device = device
        self._seen = 0
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether ``progress`` has told of the last token."""
        return self._seen == self.request.output_tokens

    async def progress(self) -> int:
        """Wait for news: the first token, the last, and if ``stream`` some in between. Tokens so far."""
        await self._news.wait()
        self._news.clear()
        self._seen = self.request.generated
        return self._seen

    def tell(self) -> None:
        """The engine has a new token."""
        if self.request.generated > self._seen:
            self._news.set()

    def __enter__(self) -> Self:
        self._device.submit(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.withdraw(self)


class Device:
    """Runs an engine's steps in real time. ``run`` is the only loop; generations belong to other tasks."""

    def __init__(self, engine: Engine, *, speed: float = 1.0) -> None:
        self.engine = engine
        self._speed = speed
        self._generations: dict[Request, Generation] = {}
        self._streams: dict[Generation, None] = {}
        self._work = asyncio.Event()

    def submit(self, generation: Generation) -> None:
        self.engine.add(generation.request)
        self._generations[generation.request] = generation
        if generation.stream:
            self._streams[generation] = None
        self._work.set()

    def withdraw(self, generation: Generation) -> None:
        self.engine.abort(generation.request)
        del self._generations[generation.request]
        self._streams.pop(generation, None)

    async def run(self) -> None:
        """Step for ever. A late loop catches up, so that the speed holds on a busy machine."""
        loop = asyncio.get_running_loop()
        due = rested = told = loop.time()
        while True:
            step = self.engine.start_step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due = rested = loop.time()
                continue
            due += step.seconds / self._speed
            now = loop.time()
            if due - now > _SLEEP_GRAIN or now - rested > _SLEEP_GRAIN:
                if now - told >= _STREAM_GRAIN:
                    told = now
                    for generation in self._streams:
                        generation.tell()
                await asyncio.sleep(max(0.0, due - now))
                rested = loop.time()
            result = self.engine.finish_step()
            for request in (*result.first, *result.finished):
                if (news := self._generations.get(request)) is not None:
                    news.tell()
