"""The clock behind the engine: steps take the time the model says, divided by the speed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from thunder_server.simulation.engine import Engine, Request, RequestState

# Steps due sooner than this run together: an event loop cannot sleep more finely.
_SLEEP_GRAIN = 0.002
# Streams hear of new tokens at most this often, their first and last ones apart. Steps that take longer are
# reported one by one; an accelerated engine sends several tokens at once, as a real one does when it is ahead
# of its clients.
_STREAM_GRAIN = 0.02


class Generation:
    """One request on the device; leaving the context aborts it if it still runs.

    >>> with device.generate(request, stream=True) as generation:       # doctest: +SKIP
    ...     while not generation.done:
    ...         await generation.progress()
    """

    def __init__(self, device: Device, request: Request, *, stream: bool) -> None:
        self.request = request
        self._device = device
        self._stream = stream
        self._seen = 0
        self._progressed = asyncio.Event()

    @property
    def done(self) -> bool:
        return self._seen == self.request.output_tokens

    async def progress(self) -> int:
        """Wait for news; output tokens so far. Without ``stream`` there is news at the end only."""
        await self._progressed.wait()
        self._progressed.clear()
        self._seen = self.request.generated
        return self._seen

    def _tell(self, *, all_streams: bool) -> bool:
        """Wake whoever waits, if this is news for them. False: tell again later."""
        finished = self.request.state is RequestState.FINISHED
        if finished or (self._stream and (all_streams or not self._seen)):
            self._progressed.set()
            return True
        return not self._stream

    def __enter__(self) -> Self:
        self._device.submit(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.withdraw(self)


class Device:
    """Runs an engine's steps in real time. ``run`` is the only loop; everything else is called from tasks."""

    def __init__(self, engine: Engine, *, speed: float = 1.0) -> None:
        self.engine = engine
        self._speed = speed
        self._generations: dict[Request, Generation] = {}
        self._untold: dict[Request, None] = {}  # with tokens that their generation has not heard of
        self._told_at = 0.0
        self._work = asyncio.Event()

    def generate(self, request: Request, *, stream: bool) -> Generation:
        return Generation(self, request, stream=stream)

    def submit(self, generation: Generation) -> None:
        self.engine.add(generation.request)
        self._generations[generation.request] = generation
        self._work.set()

    def withdraw(self, generation: Generation) -> None:
        self.engine.abort(generation.request)
        del self._generations[generation.request]
        self._untold.pop(generation.request, None)

    async def run(self) -> None:
        """Step for ever. A late loop catches up, so that the speed holds on a busy machine."""
        loop = asyncio.get_running_loop()
        due = rested = loop.time()
        while True:
            step = self.engine.start_step()
            now = loop.time()
            if step is None:
                self._tell(now, everybody=True)
                self._work.clear()
                await self._work.wait()
                due = rested = loop.time()
                continue
            due += step.seconds / self._speed
            if due - now > _SLEEP_GRAIN or now - rested > _SLEEP_GRAIN:
                self._tell(now)
                await asyncio.sleep(max(0.0, due - now))
                rested = loop.time()
            self._untold.update(dict.fromkeys(self.engine.finish_step()))

    def _tell(self, now: float, *, everybody: bool = False) -> None:
        all_streams = everybody or now - self._told_at >= _STREAM_GRAIN
        if all_streams:
            self._told_at = now
        self._untold = {
            request: None
            for request in self._untold
            if (generation := self._generations.get(request)) is not None
            and not generation._tell(all_streams=all_streams)
        }
