"""An engine in virtual time, and the account of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thunder_server.simulation.costs import Memory
from thunder_server.simulation.engine import Engine, Request, RequestState, Step
from thunder_server.simulation.time_model import EnginePreset
from thunder_server.simulation.timeline import Timeline

LONGEST_STRETCH = 1 << 20
"""Steps taken at once: as many as are alike."""


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request, how much of its prompt had been computed before, and whom to tell of its progress."""

    request: Request
    known_tokens: int
    first: Callable[[], None]
    done: Callable[[], None]
    prefilled: int | None = None  # up to where its prefill had come by the last step


class Replica:
    """One engine that steps as long as it has something to do."""

    def __init__(
        self,
        name: str,
        preset: EnginePreset,
        kv_tokens: int,
        block_size: int,
        timeline: Timeline,
        publish: Callable[[bool, Sequence[int]], None] | None = None,
    ) -> None:
        """``publish`` is told, between steps, what blocks the cache has stored (``True``) and dropped."""
        self.name = name
        self.engine = Engine(
            blocks=kv_tokens // block_size,
            block_size=block_size,
            time=preset.time,
            max_num_seqs=preset.max_num_seqs,
            max_num_batched_tokens=preset.max_num_batched_tokens,
            tell=None if publish is None else lambda stored, keys: self._news.append((stored, keys)),
        )
        self._news: list[tuple[bool, Sequence[int]]] = []
        self._publish = publish
        self.memory = Memory(self.engine.capacity_tokens)
        self.queueing: Callable[[bool], None] = lambda _: None  # told when requests begin or end to wait here
        self._timeline = timeline
        self._jobs: dict[str, Job] = {}
        self._step_in_flight: Step | None = None
        self._started = 0.0  # when it was,
        self._beats = 0  # and how many of its beats are to be finished
        self._queued = False

    def add(self, job: Job) -> None:
        self._jobs[job.request.id] = job
        self.engine.add(job.request)
        step = self._step_in_flight
        if step is None:
            self._step()
        else:  # the engine looks at it after the beat that has begun
            self._end_after(step, step.beats_begun(self._timeline.now - self._started))

    def _step(self) -> None:
        step = self._step_in_flight = self.engine.start_step(LONGEST_STRETCH)
        self._publish_news()
        if bool(self.engine.waiting) != self._queued:
            self._queued = not self._queued
            self.queueing(self._queued)
        memory = self.memory
        memory.settle(self._timeline.now)
        memory.prefill = memory.recompute = memory.decode = 0.0
        if step is None:
            return
        memory.decode = step.middle_tokens
        if step.prefill_tokens:
            self._book_prefills()
        # What several sequences share is there once; each bears its part of it.
        memory.scale(1.0 - step.shared_tokens / step.middle_tokens)
        self._started = self._timeline.now
        self._beats = 0
        self._end_after(step, step.beats)

    def _end_after(self, step: Step, beats: int) -> None:
        if beats != self._beats:
            self._beats = beats
            self._timeline.at(self._started + step.until(beats), lambda: self._finish(step, beats))

    def _book_prefills(self) -> None:
        """What prefilling requests hold, in the proportion in which their chunks are new."""
        memory = self.memory
        for request in reversed(self.engine.running):
            if request.state is not RequestState.PREFILLING:
                break  # the latest are at the end
            job = self._jobs[request.id]
            start = request.cached_tokens if job.prefilled is None else job.prefilled
            job.prefilled = request.prefilled
            chunk = request.prefilled - start
            # After a preemption all of it has been there before.
            again = 1.0 if request.preemptions else max(0.0, min(1.0, (job.known_tokens - start) / chunk))
            memory.decode -= request.prefilled
            memory.recompute += request.prefilled * again
            memory.prefill += request.prefilled * (1.0 - again)

    def _finish(self, step: Step, beats: int) -> None:
        if step is not self._step_in_flight or beats != self._beats:
            return  # it was cut short since
        self._step_in_flight = None
        result = self.engine.finish_step(beats)
        self._publish_news()
        self._tell(result.first, finished=False)
        self._tell(result.finished, finished=True)
        self._step()

    def _publish_news(self) -> None:
        news, self._news = self._news, []
        for stored, keys in news:
            assert self._publish is not None
            self._publish(stored, keys)

    def _tell(self, requests: Sequence[Request], *, finished: bool) -> None:
        for request in requests:
            if finished:
                self._jobs.pop(request.id).done()
            else:
                self._jobs[request.id].first()
