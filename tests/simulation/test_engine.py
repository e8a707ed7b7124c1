"""The engine's scheduling by worked examples: what vLLM's does with the same requests."""

from __future__ import annotations

import pytest

from thunder_server.simulation.engine import Engine, Request, RequestState, Step
from thunder_server.simulation.time_model import PRESETS, TimeModel

TIME = TimeModel(base=0.01, per_prefill_token=1e-3, per_sequence=1e-4, per_resident_token=1e-6)


def _engine(*, blocks: int = 100, block_size: int = 16, seqs: int = 8, budget: int = 64) -> Engine:
    return Engine(
        blocks=blocks, block_size=block_size, time=TIME, max_num_seqs=seqs, max_num_batched_tokens=budget
    )


def _request(name: str, prompt: int, output: int = 1, *, chain: str | None = None) -> Request:
    """Block hashes of one name are a chain: a longer prompt of the same name goes on from a shorter one."""
    hashes = [hash((chain or name, number)) for number in range((prompt + output) // 16)]
    return Request(id=name, prompt_tokens=prompt, output_tokens=output, block_hashes=hashes)


def _run(engine: Engine) -> list[Step]:
    steps = []
    while (step := engine.start_step()) is not None:
        steps.append(step)
        engine.finish_step()
        engine.check_invariants()
    return steps


def _answer(engine: Engine, request: Request) -> Request:
    engine.add(request)
    _run(engine)
    assert request.state is RequestState.FINISHED
    return request


def test_a_prompt_is_prefilled_in_chunks_and_its_last_chunk_brings_the_first_token():
    engine = _engine(budget=64)
    request = _request("a", prompt=150, output=3)
    engine.add(request)
    told = []
    while engine.start_step() is not None:
        result = engine.finish_step()
        told.append((request.generated, len(result.first), len(result.finished)))
    assert told == [(0, 0, 0), (0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 0, 1)]


def test_a_step_costs_its_prefills_its_decodes_and_what_they_read():
    engine = _engine()
    engine.add(_request("a", prompt=40, output=2))
    first, second = _run(engine)
    assert (first.prefill_tokens, first.decoding, first.resident_tokens) == (40, 0, 40)
    assert first.seconds == pytest.approx(0.01 + 40e-3 + 40e-6)
    assert (second.prefill_tokens, second.decoding, second.resident_tokens) == (0, 1, 41)
    assert second.seconds == pytest.approx(0.01 + 1e-4 + 41e-6)


def test_decodes_go_first_and_leave_the_rest_of_the_budget_to_prefills():
    engine = _engine(budget=64)
    engine.add(_request("decodes", prompt=10, output=10))
    engine.start_step()
    engine.finish_step()
    engine.add(_request("long", prompt=100))
    step = engine.start_step()
    assert (step.decoding, step.prefill_tokens) == (1, 63)


def test_several_prompts_share_a_step_in_the_order_they_came():
    engine = _engine(budget=64)
    for name in "abc":
        engine.add(_request(name, prompt=30))
    engine.start_step()
    assert [request.id for request in engine.finish_step().finished] == ["a", "b"]
    engine.start_step()
    assert [request.id for request in engine.finish_step().finished] == ["c"]


def test_no_more_sequences_run_than_allowed():
    engine = _engine(seqs=2)
    for name in "abc":
        engine.add(_request(name, prompt=4, output=2))
    engine.start_step()
    assert (len(engine.running), len(engine.waiting)) == (2, 1)


def test_full_blocks_of_a_prompt_seen_before_are_not_computed_again():
    engine = _engine()
    _answer(engine, _request("a", prompt=50, chain="x"))
    again = _answer(engine, _request("b", prompt=50, chain="x"))
    assert again.cached_tokens == 48
    assert (engine.counters.prefix_cache_queries, engine.counters.prefix_cache_hits) == (100, 48)


def test_the_last_token_is_computed_even_if_everything_is_cached_and_its_block_with_it():
    engine = _engine()
    _answer(engine, _request("a", prompt=48, chain="x"))
    assert _answer(engine, _request("b", prompt=48, chain="x")).cached_tokens == 32
    assert _answer(engine, _request("c", prompt=49, chain="x")).cached_tokens == 48


def test_the_next_turn_finds_what_was_generated_but_for_the_last_token():
    engine = _engine()
    _answer(engine, _request("a", prompt=20, output=28, chain="x"))  # 47 of 48 tokens have KV
    assert _answer(engine, _request("b", prompt=60, chain="x")).cached_tokens == 32
    _answer(engine, _request("c", prompt=60, output=37, chain="x"))  # 96 of 97
    assert _answer(engine, _request("d", prompt=120, chain="x")).cached_tokens == 96


def test_requests_of_one_step_share_a_prefix_that_the_first_of_them_computes():
    engine = _engine(budget=256)
    for name in "abc":
        engine.add(_request(name, prompt=40, chain="x"))
    step = engine.start_step()
    assert step.prefill_tokens == 40 + 8 + 8
    assert [request.cached_tokens for request in engine.running] == [0, 32, 32]


def test_a_prompt_waits_until_it_fits_whole():
    engine = _engine(blocks=10)
    engine.add(_request("a", prompt=100, output=3))
    engine.add(_request("b", prompt=60, output=1))
    seen = [len(engine.running) for _ in iter(engine.start_step, None) if engine.finish_step()]
    assert seen == [1, 1, 1, 0, 0]


def test_the_latest_gives_way_when_blocks_are_short_and_computes_again_what_it_lost():
    engine = _engine(blocks=8)
    first, latest = _request("first", prompt=60, output=40), _request("latest", prompt=60, output=40)
    engine.add(first)
    engine.add(latest)
    _run(engine)
    assert (first.preemptions, latest.preemptions) == (0, 1)
    assert first.generated == latest.generated == 40
    assert engine.counters.preemptions == 1
    # Looked up once each, however often they were admitted.
    assert engine.counters.prefix_cache_queries == 120
    assert engine.counters.prompt_tokens == 120
    assert engine.counters.generation_tokens == 80
    assert 0 < engine.counters.recomputed_tokens <= 100


def test_a_prefill_gives_way_to_those_that_decode():
    engine = _engine(blocks=8, budget=9)
    decodes = _request("decodes", prompt=25, output=60)
    engine.add(decodes)
    while not decodes.generated:
        engine.start_step()
        engine.finish_step()
    # Six blocks, all that are free, in chunks of eight tokens; meanwhile the other one needs a third.
    prefills = _request("prefills", prompt=96)
    engine.add(prefills)
    _run(engine)
    assert (decodes.preemptions, prefills.preemptions) == (0, 1)
    assert prefills.state is RequestState.FINISHED
    assert engine.counters.prompt_tokens == 121


def test_the_least_recently_used_context_is_lost_first():
    engine = _engine(blocks=12)
    for name in "ab":
        _answer(engine, _request(name, prompt=80, chain=name))
    _answer(engine, _request("c", prompt=80, chain="c"))
    assert _answer(engine, _request("b2", prompt=81, chain="b")).cached_tokens == 80
    assert _answer(engine, _request("a2", prompt=81, chain="a")).cached_tokens < 80


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_gives_everything_back(steps):
    engine = _engine(budget=64)
    request = _request("a", prompt=100, output=10)
    engine.add(request)
    for _ in range(steps):
        engine.start_step()
        engine.finish_step()
    engine.abort(request)
    assert request.state is RequestState.ABORTED
    assert engine.kv_usage == 0
    assert engine.start_step() is None
    engine.abort(request)


def test_a_request_may_be_aborted_in_the_middle_of_a_step():
    engine = _engine()
    requests = [_request(name, prompt=20, output=5) for name in "ab"]
    for request in requests:
        engine.add(request)
    for _ in range(2):
        engine.start_step()
        engine.finish_step()
    engine.start_step()
    engine.abort(requests[0])
    engine.finish_step()
    engine.check_invariants()
    assert [request.generated for request in requests] == [2, 3]
    _run(engine)
    assert requests[1].state is RequestState.FINISHED


def test_what_could_never_fit_is_refused():
    engine = _engine(blocks=2)
    with pytest.raises(ValueError, match="33 tokens, the KV cache holds 32"):
        engine.add(_request("a", prompt=30, output=4))
    engine.add(_request("b", prompt=30, output=3))
    with pytest.raises(ValueError, match="at least one token"):
        engine.add(_request("c", prompt=0))
    with pytest.raises(ValueError, match="max_num_seqs"):
        _engine(seqs=65, budget=64)


def test_the_h100_preset_is_what_was_measured():
    time = PRESETS["h100-qwen30b"].time
    for resident, milliseconds in ((0.29e6, 10), (0.74e6, 20), (1.34e6, 38), (1.68e6, 42)):
        step = time.step_seconds(prefill=0, decoding=0, resident=round(resident))
        assert 1e3 * step == pytest.approx(milliseconds, abs=3)
    mixed = [time.step_seconds(prefill=tokens, decoding=33, resident=1_680_000) for tokens in (0, 1000)]
    assert 1e3 * mixed[0] == pytest.approx(46, abs=0.5)
    assert 1e3 * (mixed[1] - mixed[0]) == pytest.approx(29)


def test_what_long_contexts_share_is_computed_and_kept_once():
    engine = Engine(blocks=10_000, block_size=16, time=TIME, max_num_seqs=96, max_num_batched_tokens=8192)
    shared = [hash(("shared", number)) for number in range(4700)]
    for name in range(96):
        own = [hash((name, number)) for number in range(50)]
        engine.add(Request(id=str(name), prompt_tokens=75_210, output_tokens=500, block_hashes=shared + own))
    assert len(_run(engine)) < 700
    assert engine.counters.prefix_cache_hits == 95 * 4700 * 16
