"""The engine against one that visits every block and every sequence in every step, on random work."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from thunder_server.simulation.engine import Engine, Request, RequestState
from thunder_server.simulation.time_model import TimeModel

BLOCK = 4
TIME = TimeModel(base=1.0, per_prefill_token=0.01, per_sequence=1e-4, per_resident_token=1e-7)


@dataclass(eq=False)
class _Block:
    hash: int | None = None
    references: int = 0


@dataclass(eq=False)
class _Sequence:
    id: int
    prompt: int
    output: int
    hashes: list[int]
    computed: int = 0
    generated: int = 0
    table: list[_Block] = field(default_factory=list)
    cached: int | None = None
    decoding: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated


class Reference:
    """vLLM's scheduler and block pool, written down naively."""

    def __init__(self, blocks: int, max_num_seqs: int, budget: int) -> None:
        self.free = [_Block() for _ in range(blocks)]  # the next to be handed out first
        self.cached: dict[int, _Block] = {}
        self.running: list[_Sequence] = []
        self.waiting: deque[_Sequence] = deque()
        self.max_num_seqs, self.budget = max_num_seqs, budget
        self.preemptions = 0
        self.step: list[_Sequence] = []

    def hold(self, block: _Block) -> None:
        if not block.references:
            self.free.remove(block)
        block.references += 1

    def drop(self, block: _Block) -> None:
        block.references -= 1
        if not block.references:
            self.free.insert(0 if block.hash is None else len(self.free), block)

    def grow(self, sequence: _Sequence, tokens: int) -> bool:
        missing = -(-tokens // BLOCK) - len(sequence.table)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free[0]
            if block.hash is not None:
                del self.cached[block.hash]
                block.hash = None
            self.hold(block)
            sequence.table.append(block)
        sequence.computed = tokens
        return True

    def share(self, sequence: _Sequence, tokens: int) -> None:
        for number, hash_ in enumerate(sequence.hashes[: tokens // BLOCK]):
            mine = sequence.table[number]
            known = self.cached.get(hash_)
            if known is None:
                mine.hash = hash_
                self.cached[hash_] = mine
            elif known is not mine:
                self.hold(known)
                sequence.table[number] = known
                self.drop(mine)

    def stop(self, sequence: _Sequence) -> None:
        self.share(sequence, sequence.computed)
        for block in reversed(sequence.table):
            self.drop(block)
        sequence.table, sequence.computed, sequence.decoding = [], 0, False
        self.running.remove(sequence)

    def abort(self, sequence: _Sequence) -> None:
        if sequence in self.running:
            if sequence.decoding and sequence.computed == sequence.tokens:
                sequence.computed -= 1  # of the step in flight
            self.stop(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def start_step(self) -> tuple[int, int]:
        """Tokens prefilled, sequences that decode."""
        budget, prefill, decoding, self.step, preempted = self.budget, 0, 0, [], False
        for sequence in list(self.running):
            chunk = min(sequence.tokens - sequence.computed, budget)
            while sequence in self.running and not self.grow(sequence, sequence.computed + chunk):
                victim = self.running[-1]
                self.stop(victim)
                self.waiting.appendleft(victim)
                self.preemptions += 1
                preempted = True
            if sequence not in self.running:
                break
            if sequence.decoding:
                decoding += 1
            else:
                self.share(sequence, sequence.computed)
                prefill += chunk
            budget -= chunk
            self.step.append(sequence)
        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            hit = []
            for hash_ in sequence.hashes[: (sequence.tokens - 1) // BLOCK]:
                if hash_ not in self.cached:
                    break
                hit.append(self.cached[hash_])
            missing = -(-sequence.tokens // BLOCK) - len(hit) + sum(not block.references for block in hit)
            if missing > len(self.free):
                break
            for block in hit:
                self.hold(block)
            sequence.table = hit
            sequence.computed = len(hit) * BLOCK
            if sequence.cached is None:
                sequence.cached = sequence.computed
            chunk = min(sequence.tokens - sequence.computed, budget)
            assert self.grow(sequence, sequence.computed + chunk)
            self.share(sequence, sequence.computed)
            self.running.append(self.waiting.popleft())
            prefill += chunk
            budget -= chunk
            self.step.append(sequence)
        return prefill, decoding

    def finish_step(self) -> list[int]:
        """Who has finished."""
        finished = []
        for sequence in self.step:
            if sequence in self.running and sequence.computed == sequence.tokens:
                sequence.generated += 1
                sequence.decoding = True
                if sequence.generated == sequence.output:
                    self.stop(sequence)
                    finished.append(sequence.id)
        return finished


class Pair:
    """Both engines, given the same work."""

    def __init__(self, blocks: int, max_num_seqs: int, budget: int) -> None:
        self.blocks = blocks
        self.engine = Engine(
            blocks=blocks,
            block_size=BLOCK,
            time=TIME,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
        )
        self.reference = Reference(blocks, max_num_seqs, budget)
        self.requests: list[tuple[Request, _Sequence]] = []

    def add(self, chain: tuple[int, ...], rest: int, output: int, meet: bool) -> None:
        """A prompt of blocks and a rest. The same prompt has the same output where sequences may ``meet``."""
        number = len(self.requests)
        prompt = len(chain) * BLOCK + rest
        output = min(output, self.blocks * BLOCK + 1 - prompt)
        said = ("said",) if meet else ("said", number)
        depth = (prompt + output) // BLOCK - len(chain)
        hashes = [hash(chain[: number + 1]) for number in range(len(chain))]
        hashes += [hash((chain, said, number)) for number in range(depth)]
        request = Request(id=str(number), prompt_tokens=prompt, output_tokens=output, block_hashes=hashes)
        self.engine.add(request)
        sequence = _Sequence(number, prompt, output, hashes)
        self.reference.waiting.append(sequence)
        self.requests.append((request, sequence))

    def abort(self, number: int) -> None:
        """The one added so long ago, if there is one."""
        if number < len(self.requests):
            request, sequence = self.requests[-1 - number]
            self.engine.abort(request)
            self.reference.abort(sequence)

    def step(self, abort: int | None = None) -> bool:
        started, prefill_and_decoding = self.engine.start_step(), self.reference.start_step()
        if started is None:
            assert prefill_and_decoding == (0, 0)
            return False
        assert (started.prefill_tokens, started.decoding) == prefill_and_decoding
        if abort is not None:
            self.abort(abort)
        finished = {request.id for request in self.engine.finish_step().finished}
        assert finished == set(map(str, self.reference.finish_step()))
        self.engine.check_invariants()
        assert self.engine.cache.free == len(self.reference.free)
        assert [request.id for request in self.engine.running] == [str(s.id) for s in self.reference.running]
        assert [request.id for request in self.engine.waiting] == [str(s.id) for s in self.reference.waiting]
        return True

    def run_out(self) -> None:
        """Everything comes to its end, and nothing is left."""
        for _ in range(10_000):
            if not self.step():
                break
        assert self.engine.cache.free == self.blocks
        assert self.engine.counters.preemptions == self.reference.preemptions
        for request, sequence in self.requests:
            assert request.cached_tokens == (sequence.cached or 0) < request.prompt_tokens
            if request.state is not RequestState.ABORTED:
                assert request.state is RequestState.FINISHED
                assert request.generated == request.output_tokens


_chains = st.lists(st.integers(0, 1), max_size=6).map(tuple)
_work = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _chains, st.integers(1, BLOCK), st.integers(1, 14), st.booleans()),
        st.tuples(st.just("step")),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=80,
)


@settings(deadline=None)
@given(work=_work, blocks=st.integers(8, 16), max_num_seqs=st.integers(1, 5), budget=st.integers(5, 20))
def test_every_step_is_the_same(work, blocks, max_num_seqs, budget):
    pair = Pair(blocks, max_num_seqs, budget)
    for what, *how in work:
        getattr(pair, what)(*how)
    pair.run_out()
    if pair.reference.preemptions:
        event("with preemption")
    if any(request.cached_tokens for request, _ in pair.requests):
        event("with hits")
