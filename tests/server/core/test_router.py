"""Where programs go: scores, shadow mode, gathering, second looks, balance."""

from __future__ import annotations

import pytest

from tests.server.core.harness import Harness
from thunder_server.core.cached import Cached
from thunder_server.core.decisions import Dispatch, Preferred, Restore, TokenizersDiffer
from thunder_server.core.events import (
    BackendDrained,
    BackendRemoved,
    CallEnd,
    CallFinished,
    CallProgressed,
    CallTokenized,
    PrefixCleared,
    PrefixEvicted,
    PrefixStored,
    PrefixUnseen,
    WeightSyncBegan,
    WeightSyncEnded,
)
from thunder_server.core.prefix import Chain
from thunder_server.core.router import REMEMBERED, REMEMBERED_S, STEP_S, UNEVEN_S, RouterSettings
from thunder_server.core.turnover import Turnover


def chain(*pieces: tuple[str, int]) -> Chain:
    """A chain of named pieces of so many tokens; four characters each."""
    keys, ends, path, size = [], [], "", 0
    for name, tokens in pieces:
        path += f"/{name}"
        size += tokens * 4
        keys.append(hash(path) & (1 << 62) - 1)
        ends.append(size)
    return Chain(tuple(keys), tuple(ends))


SYSTEM = ("system", 4000)


class Fleet(Harness):
    """Two replicas, a and b, under ``phase``."""

    def __init__(self, capacity: int | None = 100_000, policy: str = "phase", **router) -> None:
        super().__init__(policy, router=RouterSettings(**router))
        self.backend("a", capacity)
        self.backend("b", capacity)
        self.after(600.0)  # no longer cold

    def ask(self, program: str, *pieces: tuple[str, int], **kw) -> str:
        tokens = sum(size for _, size in pieces)
        return self.call(program, tokens, messages=chain(*pieces), **kw)

    def ask_whole(self, program: str, *pieces: tuple[str, int], cached: int | None = None, **kw) -> str:
        call_id = self.ask(program, *pieces, **kw)
        self.finish(call_id, sum(size for _, size in pieces), 0, cached)
        return call_id

    def where(self, program: str) -> str | None:
        return self.scheduler.program(program).backend_id

    def expected(self, call_id: str) -> int:
        return self.scheduler.call(call_id).predicted


def dispatched(decisions) -> list[tuple[str, str]]:
    return [(said.call_id, said.backend_id) for said in decisions if isinstance(said, Dispatch)]


# --- settings


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"match": 0.5, "load": 0.5, "latency": 0.5}, "weights"),
        ({"match": 1.5, "load": -0.5, "latency": 0.0}, "weights"),
        ({"exploration": 2.0}, "exploration"),
        ({"gather_s": -0.1}, "gather"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        RouterSettings(**wrong)


# --- where


def test_programs_that_begin_alike_go_to_one_replica():
    h = Fleet()
    h.ask_whole("p1", SYSTEM, ("one", 100))
    first = h.where("p1")
    h.after(1.0).ask_whole("p2", SYSTEM, ("two", 100))
    assert h.where("p2") == first
    h.after(1.0).ask_whole("p3", ("other", 4000))
    assert h.where("p3") != first  # nothing speaks for the fuller one


def test_a_fuller_replica_gives_way_once_the_match_is_no_longer_worth_it():
    h = Fleet(capacity=40_000)
    for number in range(8):
        h.after(1.0).ask_whole(f"p{number}", ("system", 1000), (f"own {number}", 4000))
    placed = [h.where(f"p{number}") for number in range(8)]
    assert len(set(placed)) == 2


def test_what_programs_share_counts_once():
    h = Fleet(capacity=10_000)
    for number in range(6):
        h.after(1.0).ask_whole(f"p{number}", ("system", 8000), (f"own {number}", 300))
    backend = h.scheduler.backends[h.where("p0")]
    assert [h.where(f"p{number}") for number in range(6)] == [backend.id] * 6
    assert backend.used(h.now) == 8000 + 6 * 300
    assert backend.sharing.credit == 5 * 8000
    router = h.scheduler.router
    assert router.shared(h.scheduler.program("p0"), backend) == 8000
    assert (
        router.shared(h.scheduler.program("p0"), h.scheduler.backends["b" if backend.id == "a" else "a"]) == 0
    )


def test_paper_counts_what_was_published():
    h = Fleet(policy="paper")
    h.ask_whole("p1", SYSTEM)
    h.ask_whole("p2", SYSTEM)
    assert h.where("p1") != h.where("p2")
    h.ask_whole("p3", SYSTEM)
    assert h.scheduler.backends[h.where("p3")].used(h.now) == pytest.approx(8000)


def test_a_replica_with_an_empty_cache_is_explored_for_a_while():
    h = Fleet()
    h.ask_whole("p1", ("system", 1000), ("one", 4000))
    warm = h.where("p1")
    cold = "b" if warm == "a" else "a"
    h.handle(PrefixCleared(at=h.now, backend_id=cold))
    # A fifth of the prompt speaks for the warm one, as much as the bonus; its load against it.
    h.ask_whole("p2", ("system", 1000), ("two", 4000))
    assert h.where("p2") == cold


def test_a_faster_replica_is_worth_more():
    h = Fleet()
    router = h.scheduler.router
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        h.scheduler.backends[name].turnover.learn(seconds=seconds, computed=0, completion=100)
    prompt = router.prompt(chain(SYSTEM), None, 4000)
    fast, slow = router.scores(prompt, list(h.scheduler.backends.values()), h.now)
    assert slow.total == pytest.approx(fast.total / 2)


def test_a_replica_where_calls_take_longer_is_worth_less():
    h = Fleet()
    router = h.scheduler.router
    a, b = h.scheduler.backends.values()
    a.pace.learn(seconds=20.0, alone_s=1.0, at=h.now)
    a.pace.learn(seconds=20.0, alone_s=0.0, at=h.now)  # says nothing
    prompt = router.prompt(chain(SYSTEM), None, 4000)
    slow, quick = router.scores(prompt, [a, b], h.now)
    assert quick.total > slow.total
    assert a.pace.stretch(h.now + 1e6) == pytest.approx(1.0)


def test_how_long_a_call_takes_alone_is_known_once_both_speeds_are():
    turnover = Turnover()
    assert turnover.alone_s(computed=1000, completion=10) == 0
    turnover.learn(seconds=1.0, computed=0, completion=100)
    assert turnover.alone_s(computed=1000, completion=10) == 0
    turnover.learn(seconds=2.0, computed=1000, completion=0)
    assert turnover.alone_s(computed=1000, completion=10) == pytest.approx(2.1, rel=1e-3)


def test_without_known_capacities_programs_count():
    h = Fleet(capacity=None)
    for number in range(4):
        h.ask_whole(f"p{number}", (f"own {number}", 4000))
    assert sorted(h.where(f"p{number}") for number in range(4)) == ["a", "a", "b", "b"]


def test_an_unknown_prompt_goes_where_it_always_went():
    h = Fleet()
    h.turn("p1", 100)
    origin = h.where("p1")
    h.turn("p1", 120)
    assert h.where("p1") == origin
    assert h.scheduler.router.resident(h.scheduler.program("p1"), h.scheduler.backends[origin], h.now) == 0


def test_an_empty_prompt_is_no_division_by_zero():
    h = Fleet()
    router = h.scheduler.router
    prompt = router.prompt(chain(("nothing", 0)), None, 0)
    assert {score.tokens for score in router.scores(prompt, list(h.scheduler.backends.values()), h.now)} == {
        0
    }


# --- looks into the caches


def test_a_look_is_remembered_until_the_cache_changes(monkeypatch: pytest.MonkeyPatch):
    h = Fleet()
    h.ask_whole("p1", SYSTEM)
    program, backend = h.scheduler.program("p1"), h.scheduler.backends[h.where("p1")]
    router = h.scheduler.router
    looks = []
    real = Cached.held
    monkeypatch.setattr(Cached, "held", lambda self, prompt: looks.append(1) or real(self, prompt))
    for _ in range(3):
        assert router.resident(program, backend, h.now) == 3999
    assert len(looks) == 1
    backend.cache.version += 1
    router.resident(program, backend, h.now)
    assert len(looks) == 2
    router.resident(program, backend, h.now + REMEMBERED_S + 0.1)
    assert len(looks) == 3


def test_looks_and_whole_prompts_are_bounded():
    h = Fleet()
    router = h.scheduler.router
    backend = h.scheduler.backends["a"]
    for number in range(REMEMBERED + 50):
        prompt = router.prompt(chain((f"p{number}", 10)), None, 10)
        router._held(prompt, backend, h.now)
    assert len(router._looks) == REMEMBERED
    call_id = h.ask("p", ("x", 10))
    call = h.scheduler.call(call_id)
    for number in range(REMEMBERED + 50):
        router._said[number] = (10, "a")
    router.learn(call, 10, backend)
    assert len(router._said) >= REMEMBERED


# --- predictions


def test_predicted_and_cached_tokens_are_compared():
    h = Fleet()
    h.ask_whole("p1", SYSTEM, ("one", 100), cached=0)
    call_id = h.after(1.0).ask("p1", SYSTEM, ("one", 100), ("two", 50))
    assert h.expected(call_id) == 4100
    h.finish(call_id, 4150, 5, 4096)
    forecast = h.scheduler.backends[h.where("p1")].forecast
    assert (forecast.calls, forecast.exact) == (2, 1)
    assert (forecast.predicted, forecast.cached, forecast.off) == (4100, 4096, 4)
    why = h.scheduler.why("p1", h.now)
    assert "4096 tokens of its prompt were cached, 4100 had been expected" in why.reason
    assert any("4100 of 4150 tokens should be cached" in reason for _, _, reason in why.decisions)


def test_a_prediction_that_was_wrong_corrects_what_is_believed():
    h = Fleet()
    h.ask_whole("p1", SYSTEM, cached=0)
    h.after(1.0).ask_whole("p2", SYSTEM, ("two", 100), cached=0)  # the engine had dropped it
    backend = h.scheduler.backends[h.where("p2")]
    assert backend.forecast.off == 4000
    assert h.scheduler.router.resident(h.scheduler.program("p2"), backend, h.now) == 4099  # but has it now


def test_calls_that_failed_teach_nothing():
    h = Fleet()
    call_id = h.ask("p1", SYSTEM)
    h.fail(call_id, CallEnd.BACKEND_FAILED)
    assert h.scheduler.program("p1").prompt is None


def test_usage_without_cached_tokens_still_tells_lengths():
    h = Fleet()
    call_id = h.ask("p1", SYSTEM)
    h.finish(call_id, 5000, 10, None)
    assert h.scheduler.program("p1").prompt.messages.ends == (5000,)
    assert h.scheduler.backends[h.where("p1")].forecast.calls == 0


def test_the_context_is_that_of_the_latest_call():
    h = Fleet()
    first = h.ask("p1", SYSTEM, ("one", 10))
    second = h.ask("p1", SYSTEM, ("two", 20))
    h.finish(second, 4020)
    h.finish(first, 4010)
    assert h.scheduler.program("p1").prompt.tokens == 4020


# --- what engines tell


def test_blocks_decide_where_an_engine_tells_what_it_holds():
    h = Fleet()
    for name in "ab":
        h.handle(PrefixCleared(at=h.now, backend_id=name, exact=True))
    h.after(600.0)
    blocks = Chain((1, 2, 3), (16, 32, 48))
    h.handle(PrefixStored(at=h.now, backend_id="b", keys=(1, 2, 3)))
    h.handle(PrefixEvicted(at=h.now, backend_id="b", keys=(3,)))
    call_id = h.ask("p1", ("prompt", 50), blocks=blocks)
    assert h.where("p1") == "b"
    assert h.expected(call_id) == 32
    h.handle(PrefixUnseen(at=h.now, backend_id="b"))
    assert not h.scheduler.backends["b"].cache.exact
    h.handle(PrefixStored(at=h.now, backend_id="gone", keys=(1,)))


def test_a_call_whose_tokens_become_known_late_is_looked_at_again():
    h = Fleet(capacity=1000)
    h.handle(PrefixCleared(at=h.now, backend_id="b", exact=True))
    h.handle(PrefixStored(at=h.now, backend_id="b", keys=(1,)))
    running = [h.ask(f"p{n}", (f"own {n}", 900)) for n in range(2)]
    waiting = h.ask("p3", ("prompt", 500))
    h.handle(CallTokenized(at=h.now, call_id=waiting, blocks=Chain((1,), (16,))))
    h.handle(CallTokenized(at=h.now, call_id="over", blocks=Chain((1,), (16,))))
    assert h.scheduler.call(waiting).prompt.blocks == Chain((1,), (16,))
    h.handle(CallTokenized(at=h.now, call_id=running[0], blocks=Chain((1,), (16,))))


def test_a_backend_that_is_gone_or_synced_holds_nothing():
    h = Fleet()
    h.ask_whole("p1", SYSTEM)
    origin = h.where("p1")
    h.handle(WeightSyncBegan(at=h.now, watchdog_s=10.0))
    h.handle(WeightSyncEnded(at=h.now))
    program, backend = h.scheduler.program("p1"), h.scheduler.backends[origin]
    assert h.scheduler.router.resident(program, backend, h.now) == 0
    h.ask_whole("p1", SYSTEM, ("more", 10))
    h.report(h.where("p1"), healthy=False)
    assert not h.scheduler.backends[origin].cache.belief.tokens


def test_different_tokens_of_the_same_prompt_are_told_once():
    h = Fleet(policy="passthrough")
    for turn in range(3):
        for program, tokens in (("p1", 100), ("p2", 110)):
            call_id = h.ask(f"{program}", ("same", 100 + turn))
            h.finish(call_id, tokens + turn, 0, None)
    told = [said for said in h.decisions if isinstance(said, TokenizersDiffer)]
    assert [set(said.backend_ids) for said in told] == [{"a", "b"}]


# --- shadow mode


def test_in_shadow_mode_it_is_only_said():
    h = Fleet(shadow=True)
    h.ask_whole("p1", SYSTEM, ("one", 100))
    first = h.where("p1")
    h.after(1.0).ask_whole("p2", SYSTEM, ("two", 100))
    assert h.where("p2") != first  # as without a router: where there is most room
    said = [one for one in h.decisions if isinstance(one, Preferred)][-1]
    assert (said.program_id, said.backend_id, said.preferred_id) == ("p2", h.where("p2"), first)
    assert (said.cached_tokens, said.preferred_tokens) == (0, 4000)
    router = h.scheduler.router
    assert (router.compared, router.agreed) == (2, 1)


@pytest.mark.parametrize("policy", ["passthrough", "paper"])
def test_every_policy_can_be_shadowed(policy):
    h = Fleet(policy=policy, shadow=True)
    h.ask_whole("p1", SYSTEM)
    h.turn("unknown", 100)
    h.handle(BackendDrained(at=h.now, backend_id="b"))
    h.ask_whole("p2", SYSTEM)
    assert h.scheduler.router.compared == 1  # where there is a choice and something is known


# --- gathering


def test_calls_that_share_what_nobody_has_let_one_go_first():
    h = Fleet()
    first = h.ask("p1", SYSTEM, ("one", 100))
    second = h.ask("p2", SYSTEM, ("two", 100))
    third = h.ask("p3", ("unrelated", 4000))
    assert h.scheduler.call(second).backend_id is None
    assert "go first" in h.scheduler.why("p2", h.now).reason
    assert h.scheduler.call(third).backend_id is not None
    said = h.run_to(h.now + STEP_S)
    assert dispatched(said) == [(second, h.where("p1"))]
    assert h.scheduler.call(first).backend_id == h.scheduler.call(second).backend_id
    assert any(isinstance(one, Restore) for one in said)


def test_nobody_waits_for_one_that_has_begun_or_has_ended():
    h = Fleet()
    first = h.ask("p1", SYSTEM, ("one", 100))
    h.handle(CallProgressed(at=h.now, call_id=first, completion_tokens=1))
    second = h.ask("p2", SYSTEM, ("two", 100))
    assert h.scheduler.call(second).backend_id is not None
    other = h.ask("p3", ("other", 4000), ("one", 100))
    h.fail(other, CallEnd.CLIENT_GONE)
    fourth = h.ask("p4", ("other", 4000), ("two", 100))
    assert h.scheduler.call(fourth).backend_id is not None


def test_nobody_waits_for_little():
    h = Fleet()
    h.ask("p1", ("system", 500), ("one", 4000))
    second = h.ask("p2", ("system", 500), ("two", 4000))
    assert h.scheduler.call(second).backend_id is not None


def test_gathering_can_be_switched_off():
    h = Fleet(gather_s=0.0)
    h.ask("p1", SYSTEM)
    assert h.scheduler.call(h.ask("p2", SYSTEM)).backend_id is not None


def test_the_window_grows_with_the_load():
    h = Fleet(capacity=20_000)
    h.ask("busy", ("own", 9000))
    h.ask("busier", ("own too", 9000))
    h.ask("busiest", ("third", 9000))
    h.ask("p1", ("system", 1500))
    waiting = h.ask("p2", ("system", 1500), ("more", 10))
    h.run_to(h.now + STEP_S)
    assert h.scheduler.call(waiting).backend_id is None
    h.run_to(h.now + 0.02)
    assert h.scheduler.call(waiting).backend_id is not None


def test_with_ample_room_too_agents_with_a_common_beginning_are_spread_out():
    """A tenth of the prompt is not worth having twice as many beside oneself."""
    h = Fleet(capacity=1_000_000)
    for number in range(12):
        h.after(1.0).ask_whole(f"p{number}", SYSTEM, (f"own {number}", 10_000))
    places = [h.where(f"p{number}") for number in range(12)]
    assert places.count("a") == places.count("b") == 6


def test_where_memory_is_not_known_programs_are_counted():
    h = Fleet(capacity=None)
    for number in range(4):
        h.after(1.0).ask_whole(f"p{number}", SYSTEM, (f"own {number}", 20_000))
    assert sorted(str(h.where(f"p{number}")) for number in range(4)) == ["a", "a", "b", "b"]


# --- second looks


def test_a_long_prompt_whose_prefix_is_gone_goes_where_there_is_more_of_it():
    h = Fleet()
    for number in range(4):
        h.after(1.0).ask_whole(f"q{number}", SYSTEM, (f"own {number}", 2000))
    busy = h.where("q0")
    idle = "b" if busy == "a" else "a"
    h.after(1.0).ask_whole("p1", ("its own", 8000))
    assert h.where("p1") == idle
    h.handle(PrefixCleared(at=h.now, backend_id=idle))
    h.after(300.0)
    call_id = h.ask("p1", SYSTEM, ("after all", 100))
    assert h.scheduler.call(call_id).backend_id == busy
    assert any("its prefix is gone" in reason for _, _, reason in h.scheduler.why("p1", h.now).decisions)


def test_nothing_is_looked_at_twice_while_other_calls_run():
    h = Fleet()
    h.after(1.0).ask_whole("q", SYSTEM)
    h.ask("p1", ("its own", 8000))
    origin = h.where("p1")
    call_id = h.ask("p1", SYSTEM, ("after all", 1000))
    assert h.scheduler.call(call_id).backend_id == origin


def test_a_long_prompt_stays_where_nothing_better_is():
    h = Fleet()
    h.after(1.0).ask_whole("p1", ("its own", 8000))
    origin = h.where("p1")
    h.handle(PrefixCleared(at=h.now, backend_id=origin))
    h.after(300.0)
    h.ask_whole("p1", ("new", 8000))
    assert h.where("p1") == origin


# --- balance


def uneven(h: Fleet) -> tuple[str, str]:
    """Six programs on one replica; the other one has just come."""
    h.handle(BackendRemoved(at=h.now, backend_id="b"))
    for number in range(6):
        h.after(1.0).ask_whole(f"p{number}", (f"own {number}", 10_000))
    h.backend("b", 100_000)
    return "a", "b"


def test_replicas_that_stay_uneven_are_evened_out_one_program_at_a_time():
    h = Fleet()
    full, empty = uneven(h)
    h.run_to(h.now + UNEVEN_S - 2)
    assert {h.where(f"p{number}") for number in range(6)} == {full}
    h.run_to(h.now + 60.0)
    placed = [h.where(f"p{number}") for number in range(6)]
    assert placed.count(empty) == 2  # until less than a quarter is between them
    assert h.scheduler.counters.moves == 2


def test_a_short_imbalance_is_none():
    h = Fleet()
    uneven(h)
    h.run_to(h.now + UNEVEN_S - 2)
    for number in range(3):
        h.close(f"p{number}", "success")
        h.close(f"p{number}", "dropped")
    h.run_to(h.now + 120.0)
    assert h.scheduler.counters.moves <= 1


def test_programs_that_reason_or_do_not_fit_are_not_moved():
    h = Fleet()
    h.handle(BackendRemoved(at=h.now, backend_id="b"))
    h.ask("p0", ("own", 60_000))
    h.backend("b", 100_000)
    h.run_to(h.now + 120.0)
    assert h.scheduler.counters.moves == 0


def test_in_shadow_mode_nothing_is_evened_out():
    h = Fleet(shadow=True)
    uneven(h)
    h.run_to(h.now + 120.0)
    assert h.scheduler.counters.moves == 0


def test_late_usage_of_a_call_that_is_over_is_ignored():
    h = Fleet()
    call_id = h.ask_whole("p1", SYSTEM)
    h.handle(CallFinished(at=h.now, call_id=call_id, end=CallEnd.COMPLETED, prompt_tokens=1, cached_tokens=1))
    assert h.scheduler.program("p1").prompt.tokens == 4000
