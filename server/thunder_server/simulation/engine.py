"""A stand-in for an LLM engine: continuous batching over a paged prefix cache, under a time model.

It schedules as vLLM's v1 scheduler does: running sequences first, prefills in chunks within a budget of
tokens a step, first come first served, the latest one preempted when blocks are short. It holds no text
and no clock: a request says how many tokens its prompt and its output have and which hashes its blocks go
by. The HTTP face derives those from text, the simulator takes them from recorded traces.

A step has two halves, because work takes time in between: ``start_step`` decides what runs and how long it
takes, ``finish_step`` says what came of it. Between the two, requests may be added and aborted.

Decoding is most of an engine's life, and a step of it costs nothing per sequence here: a sequence that
decodes is listed by the beat at which it will finish and by the one at which it next needs a block. Where
nobody needs to see every step, as in virtual time, a whole stretch of them can be taken at once: up to the
next that ends a sequence, for until then they are all alike.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from thunder_server.simulation.prefix_cache import Holding, PrefixCache
from thunder_server.simulation.time_model import TimeModel


class RequestState(StrEnum):
    """Where a request is. Preemption leads from the middle two back to ``WAITING``."""

    NEW = "new"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    ABORTED = "aborted"


RUNNING = frozenset({RequestState.PREFILLING, RequestState.DECODING})


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

    # The engine's account; for everybody else to read.
    state: RequestState = RequestState.NEW
    cached_tokens: int = 0  # of the prompt, found in the cache when first admitted
    preemptions: int = 0

    # The engine's own.
    engine: Engine | None = field(default=None, repr=False)
    holding: Holding = field(default_factory=Holding, repr=False)
    counted: bool = False  # in the prefix cache's figures; a preempted request is not counted again
    prefilled: int = 0  # tokens whose KV is there when the step in flight is over, while prefilling
    produced: int = 0  # output tokens when not decoding; they survive preemption
    first_beat: int = 0  # while decoding: the beat at which output was none

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        if self.state is RequestState.DECODING:
            assert self.engine is not None
            return self.engine.beat - self.first_beat
        return self.produced

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what KV has to cover before the next token can come."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step does: its duration in seconds at the engine's own speed, and its size.

    A stretch of ``beats`` steps takes ``seconds`` in all; every one of them has ``decoding`` tokens more to
    read than the one before, and so takes ``slower_s`` longer.
    """

    seconds: float
    prefill_tokens: int
    decoding: int
    resident_tokens: int  # in the first one
    shared_tokens: int = 0  # of these, what is there once and counts for several
    beats: int = 1
    slower_s: float = 0.0

    @property
    def middle_tokens(self) -> float:
        """Resident tokens in the mean over the beats."""
        return self.resident_tokens + self.decoding * (self.beats - 1) / 2

    def until(self, beats: int) -> float:
        """Seconds from the start to the end of the first so many beats."""
        first_s = self.seconds / self.beats - self.slower_s * (self.beats - 1) / 2
        return beats * first_s + self.slower_s * beats * (beats - 1) / 2

    def beats_begun(self, seconds: float) -> int:
        """How many beats have begun by then; at least one, at most all."""
        low, high = 1, self.beats
        while low < high:
            middle = (low + high) // 2
            if self.until(middle) > seconds:
                high = middle
            else:
                low = middle + 1
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step brought: the requests whose first token came, and those whose last did."""

    first: Sequence[Request]
    finished: Sequence[Request]


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
    ...     print(step.prefill_tokens, [request.id for request in engine.finish_step().finished])
    20 []
    0 ['a']
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        time: TimeModel,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        tell: Callable[[bool, Sequence[int]], None] | None = None,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError("a step must have room for one token of each of max_num_seqs sequences")
        self.cache = PrefixCache(blocks, tell)
        self.block_size = block_size
        self.time = time
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.counters = EngineCounters()
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in order of admission
        self.beat = 0  # steps finished
        self._decoding = 0
        self._resident = 0  # tokens in KV of those that decode
        # Those that decode, by the beat of their last token, and by the beat, modulo the block size, at which
        # they need another block. In order of admission, both.
        self._due: defaultdict[int, dict[Request, None]] = defaultdict(dict)
        self._full: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._prefilling: list[Request] | None = (
            None  # with a chunk in the step in flight; None: no such step
        )

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return 1.0 - self.cache.free / self.cache.size

    @property
    def capacity_tokens(self) -> int:
        return self.cache.size * self.block_size

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
        request.engine = self
        request.state = RequestState.WAITING
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request and free what it holds; harmless for one that is over."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state in RUNNING:
            self._stop(request)
        else:
            return
        request.state = RequestState.ABORTED

    def start_step(self, most: int = 1) -> Step | None:
        """Decide the next step, or stretch of at most so many; ``None`` when there is nothing to do."""
        assert self._prefilling is None, "the step before is not finished"
        preempted = self._grow_decoding()
        budget = self.max_num_batched_tokens - self._decoding
        chunks: list[Request] = []
        # Admission stops at the first prefill that does not end within a step, so only the latest one may
        # still be at it.
        if self.running and (latest := next(reversed(self.running))).state is RequestState.PREFILLING:
            chunk = min(latest.tokens - latest.prefilled, budget)
            if self._prefill(latest, chunk):
                chunks.append(latest)
                budget -= chunk
            else:
                self._preempt(latest)
                preempted = True
        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not (chunk := self._admit(request, budget)):
                break
            self.waiting.popleft()
            self.running[request] = None
            chunks.append(request)
            budget -= chunk

        if not self.running:
            return None
        self._prefilling = chunks
        prefill = self.max_num_batched_tokens - self._decoding - budget
        resident = self._resident + self._decoding + sum(request.prefilled for request in chunks)
        beats = 1 if most == 1 or chunks or self.waiting else min(most, self._alike())
        seconds = self.time.step_seconds(prefill=prefill, decoding=self._decoding, resident=resident)
        slower = self.time.per_resident_token * self._decoding
        return Step(
            seconds=beats * seconds + slower * beats * (beats - 1) / 2,
            prefill_tokens=prefill,
            decoding=self._decoding,
            resident_tokens=resident,
            shared_tokens=self.cache.saved * self.block_size,
            beats=beats,
            slower_s=slower,
        )

    def _alike(self) -> int:
        """How many steps there are, of nothing but decoding, until one that ends a sequence or for which
        blocks may be short."""
        blocks = self.cache.free // self._decoding * self.block_size
        return max(1, min(min(self._due) - self.beat, blocks))

    def finish_step(self, beats: int = 1) -> StepResult:
        """End the step in flight, or so many of the stretch: everybody who was decoding, or is through with
        prefilling, has one token per beat more than before."""
        assert self._prefilling is not None, "no step was started"
        chunks, self._prefilling = self._prefilling, None
        counters = self.counters
        for _ in range(beats - 1):
            self.beat += 1
            preempted = self._grow_decoding()
            assert not preempted, "a stretch ends before blocks are short"
        self.beat += 1
        self._resident += self._decoding * beats
        counters.generation_tokens += self._decoding * beats
        finished = list(self._due.get(self.beat, ()))
        first = []
        for request in chunks:
            # Aborted meanwhile, or with more chunks to come.
            if request.state is not RequestState.PREFILLING or request.prefilled < request.tokens:
                continue
            counters.generation_tokens += 1
            if not request.produced:
                counters.prompt_tokens += request.prompt_tokens
                first.append(request)
            request.produced += 1
            if request.produced == request.output_tokens:
                finished.append(request)
            else:
                self._start_decoding(request)
        for request in finished:
            self._stop(request)
            request.state = RequestState.FINISHED
        return StepResult(first=first, finished=finished)

    def _grow_decoding(self) -> bool:
        """Blocks for those that decode and have filled theirs. True: somebody had to give way."""
        preempted = False
        for request in list(self._full[self.beat % self.block_size]):
            while request.state is RequestState.DECODING:
                if self.cache.grow(request.holding, request.holding.blocks + 1):
                    break
                self._preempt(next(reversed(self.running)))
                preempted = True
        return preempted

    def _admit(self, request: Request, budget: int) -> int:
        """Give the first waiting request its cached prefix and blocks for its first chunk.

        The tokens of the chunk, or 0 where the *whole* sequence does not fit: admitting on the first chunk
        alone would preempt sooner than serve.
        """
        tokens = request.tokens
        # The last token is always computed, for its logits, and with it its whole block.
        limit = min((tokens - 1) // self.block_size, len(request.block_hashes))
        prefix = self.cache.find(request.block_hashes, limit)
        if self._blocks(tokens) - prefix.blocks + prefix.free > self.cache.free:
            return 0
        request.holding = self.cache.hold(prefix)
        request.state = RequestState.PREFILLING
        request.prefilled = hit = prefix.blocks * self.block_size
        chunk = min(tokens - hit, budget)
        fits = self._prefill(request, chunk)
        assert fits, "a sequence that fits whole has room for its first chunk"
        if request.counted:
            self.counters.recomputed_tokens += tokens - hit
        else:
            request.counted = True
            request.cached_tokens = hit
            self.counters.prefix_cache_queries += tokens
            self.counters.prefix_cache_hits += hit
        return chunk

    def _prefill(self, request: Request, chunk: int) -> bool:
        """Blocks for so many more tokens; the full ones can be found at once. False: not enough are free."""
        prefilled = request.prefilled + chunk
        if not self.cache.grow(request.holding, self._blocks(prefilled)):
            return False
        request.prefilled = prefilled
        self._share(request, prefilled)
        return True

    def _share(self, request: Request, tokens: int) -> None:
        full = min(tokens // self.block_size, len(request.block_hashes))
        self.cache.share(request.holding, request.block_hashes, full)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _start_decoding(self, request: Request) -> None:
        held = request.prefilled
        request.state = RequestState.DECODING
        request.first_beat = self.beat - request.produced
        self._decoding += 1
        self._resident += held
        self._due[request.first_beat + request.output_tokens][request] = None
        self._full[(self.beat - held) % self.block_size][request] = None

    def _stop_decoding(self, request: Request) -> None:
        request.produced = request.generated
        # The latest token's KV would be computed in the step to come.
        held = request.prompt_tokens + request.produced - 1
        self._share(request, held)
        self._decoding -= 1
        self._resident -= held
        due = request.first_beat + request.output_tokens
        del self._due[due][request]
        if not self._due[due]:
            del self._due[due]
        del self._full[(self.beat - held) % self.block_size][request]

    def _stop(self, request: Request) -> None:
        """Take a request out of the batch; its blocks are free, and what they hold can be found."""
        if request.state is RequestState.DECODING:
            self._stop_decoding(request)
        self.cache.release(request.holding)
        del self.running[request]

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue; its KV is to be computed again, as far as it does not survive."""
        self._stop(request)
        request.state = RequestState.WAITING
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def check_invariants(self) -> None:
        """Requests, blocks and sums agree with each other; for tests, between steps."""
        assert self._prefilling is None
        self.cache.check_invariants()
        decoding = [request for request in self.running if request.state is RequestState.DECODING]
        private = sum(request.holding.private for request in self.running)
        assert self.cache.free + self.cache.shared_blocks + private == self.cache.size
        assert (
            self._decoding == len(decoding) == sum(map(len, self._due.values())) == sum(map(len, self._full))
        )
        assert self._resident == sum(request.tokens - 1 for request in decoding)
        for number, request in enumerate(self.running):
            held = request.tokens - 1 if request.state is RequestState.DECODING else request.prefilled
            assert request.state in RUNNING
            assert request.state is RequestState.DECODING or number == len(self.running) - 1
            assert request.holding.blocks == self._blocks(held)
            assert request.generated < request.output_tokens
        for request in self.waiting:
            assert request.state is RequestState.WAITING
            assert not request.holding.blocks
