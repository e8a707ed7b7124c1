"""A stand-in for an LLM engine: continuous batching over a paged prefix cache, under a time model.

It schedules as vLLM's v1 scheduler does, and holds no text and no clock: a request says how many tokens its
prompt and its output have and which hashes its blocks go by. The HTTP face derives those from text, the
simulator takes them from recorded traces.

A step has two halves, because work takes time in between: ``start_step`` decides what runs and how long it
takes, ``finish_step`` says what came out. Between the two, requests may be added and aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.simulation.blocks import BlockPool
from thunder_server.simulation.time_model import TimeModel


class RequestState(StrEnum):
    """Where a request is. ``WAITING`` is also where preemption puts it back."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One generation: ``prompt_tokens`` in, exactly ``output_tokens`` (at least one) out.

    ``block_hashes`` name the full blocks of prompt *and* output from the first on, each hash standing for
    everything up to the end of its block. They may end early: blocks beyond are never found again.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: Sequence[int] = field(default=(), repr=False)

    # The engine's account; read only for everybody else.
    state: RequestState = RequestState.NEW
    generated: int = 0  # output tokens so far; they survive preemption
    computed: int = 0  # tokens whose KV is there, or will be when the step that runs is over
    cached_tokens: int = 0  # of the prompt, found in the cache when first admitted
    preemptions: int = 0
    admitted: bool = False  # has run before, perhaps to be preempted since
    table: list[int] = field(default_factory=list, repr=False)  # its blocks, from the head
    remembered: int = 0  # blocks of the table that can be found by others

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what its KV has to cover before the next token can come."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step does: its duration in seconds at the engine's own speed, and its size."""

    seconds: float
    prefill_tokens: int
    decoding: int
    resident_tokens: int


@dataclass(slots=True, kw_only=True)
class EngineCounters:
    """Totals since the start, counted as vLLM's metrics of the same names are."""

    prefix_cache_queries: int = 0  # tokens looked up, at first admission
    prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # of requests whose prefill is complete
    generation_tokens: int = 0
    recomputed_tokens: int = 0  # prefilled again after a preemption


class Engine:
    """The sans-IO engine.

    >>> engine = Engine(blocks=8, block_size=16, time=TimeModel(base=0.01))
    >>> engine.add(Request(id="a", prompt_tokens=20, output_tokens=2))
    >>> while (step := engine.start_step()) is not None:
    ...     print(step.prefill_tokens, [(r.id, r.generated) for r in engine.finish_step()])
    20 [('a', 1)]
    0 [('a', 2)]
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        time: TimeModel,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        self.pool = BlockPool(blocks)
        self.block_size = block_size
        self.time = time
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.counters = EngineCounters()
        self.running: list[Request] = []  # in order of admission
        self.waiting: deque[Request] = deque()  # first come, first served
        self._scheduled: list[Request] | None = None  # the step in flight

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return 1.0 - self.pool.free / self.pool.size

    @property
    def capacity_tokens(self) -> int:
        return self.pool.size * self.block_size

    def add(self, request: Request) -> None:
        """Queue a request. One that could never fit is a ``ValueError``."""
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id} needs at least one token in and one out")
        # The last token is only sampled; its KV is never computed.
        largest = request.prompt_tokens + request.output_tokens - 1
        if largest > self.capacity_tokens:
            raise ValueError(
                f"request {request.id} needs {largest} tokens, the KV cache holds {self.capacity_tokens}"
            )
        request.state = RequestState.WAITING
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request and free what it holds; harmless for one that is over."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._free(request)
        else:
            return
        request.state = RequestState.ABORTED

    def start_step(self) -> Step | None:
        """Decide the next step; ``None`` when there is nothing to do."""
        assert self._scheduled is None, "the step before is not finished"
        scheduled: list[Request] = []
        budget = self.max_num_batched_tokens
        prefill = decoding = resident = 0

        # Those that run go first, in order of admission; when blocks are short the latest one gives way.
        preempted = False
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            new = min(request.tokens - request.computed, budget)
            while not (fits := self._grow(request, new)):
                preempted = True
                if self._preempt_latest() is request:
                    break
            if not fits:
                break
            if request.generated and new == 1:
                decoding += 1
            else:
                prefill += new
            resident += request.computed
            budget -= new
            scheduled.append(request)
            index += 1

        # Then new ones, strictly in order, unless memory has just proved short.
        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            new = self._admit(request, budget)
            if not new:
                break
            self.waiting.popleft()
            self.running.append(request)
            prefill += new
            resident += request.computed
            budget -= new
            scheduled.append(request)

        if not scheduled:
            return None
        self._scheduled = scheduled
        return Step(
            seconds=self.time.step_seconds(prefill=prefill, decoding=decoding, resident=resident),
            prefill_tokens=prefill,
            decoding=decoding,
            resident_tokens=resident,
        )

    def finish_step(self) -> list[Request]:
        """End the step in flight; the requests that got a token, each one more than before."""
        assert self._scheduled is not None, "no step was started"
        produced = []
        for request in self._scheduled:
            # Aborted meanwhile, or its prefill goes on.
            if request.state is not RequestState.RUNNING or request.computed < request.tokens:
                continue
            if not request.generated:
                self.counters.prompt_tokens += request.prompt_tokens
            request.generated += 1
            produced.append(request)
            if request.generated == request.output_tokens:
                request.state = RequestState.FINISHED
                self._free(request)
        self._scheduled = None
        self.counters.generation_tokens += len(produced)
        self.running = [request for request in self.running if request.state is RequestState.RUNNING]
        return produced

    def clear_cache(self) -> None:
        """Forget all cached prefixes, as after new weights."""
        self.pool.clear()

    def _admit(self, request: Request, budget: int) -> int:
        """Give the first waiting request its cached prefix and blocks for its first chunk.

        The tokens of the chunk, or 0 where the *whole* sequence does not fit: admitting on the first chunk
        alone would preempt sooner than serve.
        """
        # The last token is always computed, for its logits, and with it its whole block.
        found = self.pool.find(request.block_hashes[: (request.tokens - 1) // self.block_size])
        hit = len(found) * self.block_size
        missing = -(-request.tokens // self.block_size) - len(found)
        if missing + self.pool.count_free(found) > self.pool.free:
            return 0
        self.pool.hold(found)
        request.table = found
        request.remembered = len(found)
        request.computed = hit
        request.state = RequestState.RUNNING
        new = min(request.tokens - hit, budget)
        grown = self._grow(request, new)
        assert grown, "a sequence that fits whole has room for its first chunk"
        if request.admitted:
            self.counters.recomputed_tokens += request.tokens - hit
        else:
            request.admitted = True
            request.cached_tokens = hit
            self.counters.prefix_cache_queries += request.tokens
            self.counters.prefix_cache_hits += hit
        return new

    def _grow(self, request: Request, new: int) -> bool:
        """Blocks for ``new`` more tokens, and what they fill becomes findable. False: not enough are free."""
        computed = request.computed + new
        missing = -(-computed // self.block_size) - len(request.table)
        if missing > 0:
            if missing > self.pool.free:
                return False
            request.table += self.pool.allocate(missing)
        request.computed = computed
        full = min(computed // self.block_size, len(request.block_hashes))
        for number in range(request.remembered, full):
            self.pool.remember(request.table[number], request.block_hashes[number])
        request.remembered = max(request.remembered, full)
        return True

    def _preempt_latest(self) -> Request:
        """Put the latest admitted request back to the head of the queue; its KV is to be computed again."""
        request = self.running.pop()
        self._free(request)
        request.state = RequestState.WAITING
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)
        return request

    def _free(self, request: Request) -> None:
        self.pool.release(request.table)
        request.table = []
        request.remembered = 0
        request.computed = 0

    def check_invariants(self) -> None:
        """Blocks and requests agree with each other; for tests."""
        self.pool.check_invariants()
        held = sum(len(request.table) for request in self.running)
        assert held == self.pool.references, f"requests hold {held} blocks, the pool says otherwise"
        for request in self.running:
            assert request.state is RequestState.RUNNING
            assert len(request.table) == -(-request.computed // self.block_size)
            assert request.computed <= request.tokens
        for request in self.waiting:
            assert request.state is RequestState.WAITING
            assert not request.table
