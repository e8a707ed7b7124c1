"""An engine in virtual time, and the account of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thunder_server.simulation.costs import Memory
from thunder_server.simulation.engine import Engine, Request, RequestState
from thunder_server.simulation.time_model import EnginePreset
from thunder_server.simulation.timeline import Timeline


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
        self._stepping = False
        self._queued = False

    def add(self, job: Job) -> None:
        self._jobs[job.request.id] = job
        self.engine.add(job.request)
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        step = self.engine.start_step()
        self._publish_news()
        if bool(self.engine.waiting) != self._queued:
            self._queued = not self._queued
            self.queueing(self._queued)
        memory = self.memory
        memory.settle(self._timeline.now)
        memory.prefill = memory.recompute = memory.decode = 0.0
        if step is None:
            return
        memory.decode = float(step.resident_tokens)
        if step.prefill_tokens:
            self._book_prefills()
        self._stepping = True
        self._timeline.at(self._timeline.now + step.seconds, self._finish)

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

    def _finish(self) -> None:
        self._stepping = False
        result = self.engine.finish_step()
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
