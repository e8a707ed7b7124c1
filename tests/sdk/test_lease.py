"""Heartbeats, and what happens when they could not be sent for longer than the lease."""

import gc

import pytest

import thunder_sdk as thunder
from thunder_sdk._atomic import Once
from thunder_sdk._pulse import Pulse
from thunder_sdk.testing import use_sdk


@pytest.fixture
def sdk(server, sources):
    with use_sdk(server.url, sources=sources, threaded=False, lease=30.0) as process:
        yield process


def beats(server):
    return [e["at"] for e in server.events if e["type"] == "heartbeat"]


def pass_time(process, sources, seconds):
    sources.advance(seconds)
    process.sender.step()
    thunder.flush(30)


def test_the_owner_beats_every_third_of_the_lease(server, sdk, sources):
    p = thunder.program().__enter__()
    for _ in range(7):
        pass_time(sdk, sources, 5)
    assert beats(server) == [1010, 1020, 1030]
    assert sdk.sender.step() == pytest.approx(5)
    p.close()
    for _ in range(4):
        pass_time(sdk, sources, 10)
    assert len(beats(server)) == 3
    assert sdk.sender.step() is None


def test_not_if_something_else_was_sent(server, sdk, sources):
    p = thunder.program().__enter__()
    pass_time(sdk, sources, 9)
    with p.acting("bash"):
        pass_time(sdk, sources, 9)
        assert beats(server) == []
        pass_time(sdk, sources, 1)
    assert beats(server) == [1019]


def test_each_has_its_own_lease(server, sdk, sources):
    p = thunder.program(lease=3).__enter__()
    q = thunder.program().__enter__()
    pass_time(sdk, sources, 1)
    assert [e["program_id"] for e in server.events] == [p.id]
    assert server.programs[p.id].fields["lease_s"] == 3
    assert server.programs[q.id].fields["lease_s"] == 30


def test_handles_do_not_beat(server, sdk, sources):
    with thunder.attach(thunder.program().serialize()) as handle:
        handle.heartbeat()
        pass_time(sdk, sources, 25)
        assert handle.status == "active"
    assert server.requests == []


def test_who_is_forgotten_beats_no_more(server, sdk, sources):
    thunder.program().heartbeat()
    thunder.flush(30)
    gc.collect()
    pass_time(sdk, sources, 11)
    assert beats(server) == [1000]


def test_a_sleep_longer_than_the_lease(server, sdk, sources, caplog):
    p = thunder.program(program_id="x").__enter__()
    thunder.flush(30)
    server.terminate("x", "lease_expired")
    sources.advance(31)
    assert (p.status, p.outcome) == ("terminated", "lease_expired")
    assert caplog.text.count("lease_expired") == 1
    seen = len(server.requests)
    with p.acting("bash"):
        p.heartbeat()
        pass_time(sdk, sources, 10)
    assert len(server.requests) == seen
    assert thunder.current_program() is p
    assert p.headers()["X-Thunder-Program-Id"] == "x"  # the next call
    assert (p.status, p.outcome) == ("active", None)
    thunder.flush(30)
    assert (p.generation, server.programs["x"].generation) == (2, 2)
    pass_time(sdk, sources, 10)
    assert beats(server) == [1051]
    assert len(caplog.records) == 1
    p.close()
    assert server.requests[-1].query == {"outcome": "success", "generation": "2"}


def test_the_sender_notices_it_first(server, sdk, sources, caplog):
    p = thunder.program().__enter__()
    thunder.flush(30)
    pass_time(sdk, sources, 31)
    assert beats(server) == []
    assert len(caplog.records) == 1
    assert p.status == "terminated"


def test_a_sleep_in_strict_mode(server, sources):
    with use_sdk(server.url, sources=sources, threaded=False, strict=True, lease=3):
        p = thunder.program().__enter__()
        sources.advance(4)
        with pytest.raises(thunder.ThunderStateError, match="lease"):
            p.acting("bash").__enter__()
        p.heartbeat()
        p.close()


def test_the_server_may_end_it(server, sdk, sources, caplog):
    p = thunder.program(program_id="x").__enter__()
    thunder.flush(30)
    server.terminate("x", "dropped")
    p.heartbeat()
    p.heartbeat()
    thunder.flush(30)
    assert (p.status, p.outcome) == ("terminated", "dropped")
    assert len(caplog.records) == 1
    pass_time(sdk, sources, 15)
    assert p.status == "terminated"
    server.programs["x"].status, server.programs["x"].outcome = "active", None
    p._life.learn("active", 2, None)  # an answer that overtook our own word
    assert p.status == "active"
    pass_time(sdk, sources, 10)
    assert beats(server)[-1] == 1025


def test_status_follows_the_answers(server, sdk):
    p = thunder.program(program_id="x").__enter__()
    thunder.flush(30)
    server.programs["x"].status = "paused"
    p.heartbeat()
    thunder.flush(30)
    assert p.status == "paused"
    p.close()


def test_heartbeats_survive_another_init(server, sdk, sources):
    p = thunder.program(program_id="x").__enter__()
    thunder.init(server.url)
    pass_time(thunder._process.here(), sources, 25)
    assert beats(server) == [1025]
    p.close()


def test_in_real_time_the_thread_wakes_up_for_it(server):
    with use_sdk(server.url, lease=1.5) as process, thunder.program() as p:
        server.wait_for(lambda s: len(beats(s)) >= 2, timeout=60)
        assert {e["program_id"] for e in server.events} == {p.id}
    assert process.sender.health == "reachable"


class Overtaken(Once):
    """Somebody else claims it between our look and our claim."""

    def claim(self):
        return False


def test_a_race_to_open_or_to_lapse_has_one_winner(server, sdk, caplog):
    p = thunder.program()
    p._life._opening = Overtaken()
    p.open()
    p._life._end_by_server("dropped", "so says a test")
    p._life._end_by_server("dropped", "so says a test")
    assert len(caplog.records) == 1
    assert server.requests == []


def test_a_pulse_asks_in_order():
    class Asked:
        def __init__(self, name, again=None):
            self.name, self.again = name, again

        def beat(self, now):
            asked.append((now, self.name))
            return self.again

    asked = []
    late, early, gone = Asked("late"), Asked("early", again=9.0), Asked("gone")
    pulse = Pulse()
    assert pulse.beat(0.0) is None
    pulse.watch(late, 5.0)
    pulse.watch(early, 3.0)
    pulse.watch(gone, 1.0)
    del gone
    gc.collect()
    assert pulse.beat(2.0) == 3.0
    assert pulse.beat(6.0) == 9.0
    assert asked == [(6.0, "early"), (6.0, "late")]
