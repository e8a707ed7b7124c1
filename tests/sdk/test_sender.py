"""The background sender: order, outages, refusals, and who waits for what."""

import logging
import sys
import threading
import time

import pytest

import thunder_sdk as thunder
from thunder_sdk import _process, _sender
from thunder_sdk._delivery import Patience
from thunder_sdk._sender import Health
from thunder_sdk.testing import FakeSources, RecordingServer, use_sdk


@pytest.fixture
def by_hand(server, sources):
    """A sender without a thread, in time that stands still."""
    with use_sdk(server.url, sources=sources, threaded=False) as process:
        yield process


def started(program, n=1):
    for _ in range(n):
        program.acting("t").__enter__()


def test_only_queues_until_asked(server, by_hand):
    p = thunder.program()
    started(p, 3)
    assert server.requests == []
    assert thunder.flush(30)
    assert [r.method for r in server.requests] == ["PUT", "POST"]
    assert [e["seq"] for e in server.events] == [1, 2, 3]
    assert {r.body["emitter"] for r in server.requests if r.method == "POST"} == {by_hand.sender.emitter}


@pytest.mark.parametrize("status", [500, 503, 408, 429])
def test_these_are_tried_again_in_order(server, by_hand, status, caplog):
    caplog.set_level(logging.INFO, "thunder_sdk")
    server.fail_next += [status, status]
    p = thunder.program()
    started(p)
    for _ in range(2):
        assert not thunder.flush(30)
    assert by_hand.sender.health is Health.UNREACHABLE
    assert thunder.flush(30)
    p.close()
    assert [r.method for r in server.requests] == ["PUT", "PUT", "PUT", "POST", "DELETE"]
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert str(status) in caplog.text
    assert "is back" in caplog.text


def test_other_refusals_drop_the_batch(server, by_hand, caplog):
    p = thunder.program()
    server.fail_next.append(422)
    assert thunder.flush(30)
    started(p)
    assert thunder.flush(30)
    assert "the server answered 422, 1 dropped: scripted 422" in caplog.text
    assert by_hand.sender.health is Health.REACHABLE
    assert len(server.events) == 1


def test_a_close_without_a_known_generation(server, by_hand):
    p = thunder.program().__enter__()
    server.fail_next.append(422)
    p.close("error")
    assert server.requests[-1].query == {"outcome": "error"}


def test_a_batch_tried_again_keeps_its_numbers(server, by_hand):
    started(p := thunder.program())
    by_hand.sender.step()
    server.fail_next.append(500)
    assert not thunder.flush(30)
    started(p)
    assert thunder.flush(30)
    assert [e["seq"] for e in server.events] == [1, 1, 2]


def test_a_message_need_not_be_there(by_hand):
    assert _sender._message_of({"error": "plain"}) == ""
    assert _sender._message_of({}) == ""


def test_events_that_are_not_taken_are_logged(by_hand, caplog):
    started(p := thunder.program())
    batch = [*by_hand.sender.outbox.take(), *by_hand.sender.outbox.take()]
    by_hand.sender.outbox.settle()
    _sender._teach(
        by_hand.sender.outbox.take(), {"programs": [], "errors": [{"index": 0, "message": "bad seq"}]}
    )
    assert "bad seq" in caplog.text
    for state in ({"status": 1, "generation": 2}, {"status": "active"}, "x"):
        _sender._teach(by_hand.sender.outbox.take(), {"programs": {p.id: state}, "errors": None})
    assert (p.status, p.generation) == ("active", 1)
    assert len(batch) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_everything(server, by_hand, caplog, status):
    server.fail_next.append(status)
    p = thunder.program()
    started(p)
    assert not thunder.flush(30)
    started(p, 5)
    p.close()
    assert not thunder.flush(30)
    assert len(server.requests) == 1
    assert len(by_hand.sender.outbox) == 0
    assert caplog.text.count("THUNDER_API_KEY") == 1


def test_an_outage_is_told_once_and_its_end_once(dead_url, server, caplog):
    caplog.set_level(logging.INFO, "thunder_sdk")
    with use_sdk(dead_url, sources=FakeSources(), threaded=False) as process:
        p = thunder.program()
        started(p)
        for _ in range(3):
            assert not thunder.flush(30)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert process.sender.health is Health.UNREACHABLE
        assert process.sender.delivery(Patience.CALM).exception() is not None


def test_back_off_doubles_up_to_a_bound(server, sources, by_hand):
    sender = by_hand.sender
    server.fail_next += [500] * 8
    thunder.program().heartbeat()
    waits = []
    for _ in range(8):
        sender.step()
        waits.append(sender.step())
        sources.now += waits[-1]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    sender.step()
    assert sender.health is Health.REACHABLE


def test_waiters_without_urgency_do_not_wait_for_an_outage(server, sources, by_hand):
    sender = by_hand.sender
    thunder.program().heartbeat()
    early = sender.delivery(Patience.CALM)
    urgent = sender.delivery(Patience.EAGER)
    server.fail_next += [500]
    sender.step()
    assert isinstance(early.exception(0), thunder.ThunderConnectionError)
    assert isinstance(urgent.exception(0), thunder.ThunderConnectionError)
    late = sender._deliveries.add(10**6, Patience.CALM)
    now = sender._deliveries.add(10**6, Patience.EAGER)
    server.fail_next += [500]
    sender.step()
    assert late.exception(0) is not None
    assert now.exception(0) is not None


def test_a_lasting_wait_outlives_failures_without_a_try_for_each(server, sources, by_hand):
    sender = by_hand.sender
    thunder.program().heartbeat()
    lasting = sender.delivery(Patience.LASTING)
    for patience in (Patience.LASTING, Patience.EAGER):
        assert sender.delivery(patience).cancel()
    server.fail_next += [500, 500]
    sender.step()
    assert sender.step() == pytest.approx(_sender.BACKOFF_FIRST)
    sources.now += _sender.BACKOFF_FIRST
    sender.step()
    assert not lasting.done()
    sources.now += _sender.BACKOFF_MAX
    while sender.outbox:
        sender.step()
    assert lasting.result(0) is None
    assert [r.method for r in server.requests] == ["PUT", "PUT", "PUT", "POST"]


def test_flush_waits_for_a_server_to_return(server):
    with use_sdk(server.url):
        server.fail_next += [503, 503]
        with thunder.program() as p:
            assert thunder.flush(30)
        assert p.outcome == "success"


def test_flush_gives_up_in_time(dead_url):
    with use_sdk(dead_url):
        thunder.program().heartbeat()
        assert not thunder.flush(0.3)


def test_a_waiter_for_later_goes_on_waiting(server, by_hand):
    sender = by_hand.sender
    p = thunder.program()
    p.heartbeat()
    sender.step()
    first = sender.delivery(Patience.EAGER)
    thunder.program().heartbeat()
    last = sender.delivery(Patience.EAGER)
    sender.step()
    assert (first.done(), last.done()) == (True, False)
    sender.step()
    sender.step()
    assert last.done()


def test_close_waits_for_a_slow_server_only_so_long(server):
    with use_sdk(server.url, patience=0.05):
        p = thunder.program().__enter__()
        server.gate.clear()
        before = time.monotonic()
        p.close()
        assert time.monotonic() - before < 2
        server.gate.set()
        assert thunder.flush(30)
    assert server.programs[p.id].outcome == "success"


def test_close_does_not_wait_for_a_server_known_to_be_away(dead_url):
    with use_sdk(dead_url) as process:
        p = thunder.program().__enter__()
        assert not thunder.flush(5)
        assert process.sender.health is Health.UNREACHABLE
        p.close()
        assert p.outcome == "success"


async def test_a_plain_with_in_a_loop_only_queues(server):
    with use_sdk(server.url):
        server.gate.clear()
        with thunder.program() as p:
            pass
        assert p.outcome == "success"
        assert server.requests == []
        server.gate.set()
        async with thunder.program():
            pass
    assert server.programs[p.id].outcome == "success"


def test_the_thread_survives_a_bug(server, caplog):
    class Broken:
        id = "broken"
        confirmed_generation = None

        def learn(self, *_):
            raise RuntimeError("a bug")

    with use_sdk(server.url) as process:
        process.put(_sender.Open(Broken(), {}, 0.0))
        assert thunder.flush(30)
        with thunder.program() as p:
            pass
        assert thunder.flush(30)
    assert "report this as a bug" in caplog.text
    assert server.programs[p.id].outcome == "success"


class Breaking(logging.Handler):
    """An application's handler with a bug of its own."""

    def emit(self, record):
        raise RuntimeError("no disk")


def test_the_thread_survives_a_broken_log_handler(server):
    class Broken:
        id = "broken"
        confirmed_generation = None

        def learn(self, *_):
            raise RuntimeError("a bug")

    logger, handler = logging.getLogger("thunder_sdk"), Breaking(logging.INFO)
    logger.addHandler(handler)
    try:
        with use_sdk(server.url) as process:
            server.fail_next += [503, 422]
            process.put(_sender.Open(Broken(), {}, 0.0))
            process.put(_sender.Open(Broken(), {}, 0.0))
            with thunder.program() as p:
                assert thunder.flush(30)
            assert thunder.flush(30)
    finally:
        logger.removeHandler(handler)
    assert server.programs[p.id].outcome == "success"


def test_what_ends_in_the_senders_own_thread_does_not_wait_for_itself(server):
    results = []

    class Closing:
        id = "closing"
        confirmed_generation = None

        def learn(self, *_):
            results.append(thunder.flush(30))
            inner.close()

    with use_sdk(server.url) as process:
        inner = thunder.program().__enter__()
        process.put(_sender.Open(Closing(), {}, 0.0))
        assert thunder.flush(30)
        assert thunder.flush(30)
    assert results == [False]
    assert server.programs[inner.id].outcome == "success"


def test_a_sender_that_stops_lets_those_who_wait_go(server):
    with use_sdk(server.url) as process:
        server.gate.clear()
        thunder.program().heartbeat()
        waiting = process.sender.delivery(Patience.LASTING)
        server.fail_next += [503]
        process.sender.stop()
        server.gate.set()
        assert isinstance(waiting.exception(30), thunder.ThunderConnectionError)


def test_an_interpreter_that_starts_no_thread(server, monkeypatch):
    start = threading.Thread.start

    def no_thread(self):
        if self.name == "thunder-sdk":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(self)

    with use_sdk(server.url):
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with thunder.program():
            pass
        assert [r.method for r in server.requests] == ["PUT", "DELETE"]


def test_the_key_goes_to_the_configured_server_only(dead_url):
    with RecordingServer(api_key="secret") as server:
        with use_sdk(server.url, api_key="secret"), thunder.program():
            pass
        assert [r.method for r in server.requests] == ["PUT", "DELETE"]
        with use_sdk(api_key="secret", environ={}) as process:
            process.sender.discovered(server.url)
            thunder.program().heartbeat()
            assert not thunder.flush(30)
        assert "authorization" not in server.requests[-1].headers


def test_without_a_server_the_first_that_answers_is_it(server, sources):
    with use_sdk(sources=sources, threaded=False, environ={}) as process:
        sender = process.sender
        thunder.program().heartbeat()
        assert sender.step() == pytest.approx(_sender.DISCOVERY)
        sources.now += 2
        assert sender.step() == pytest.approx(_sender.DISCOVERY - 2)
        sender.discovered(server.url)
        sender.discovered(server.url)
        while sender.outbox:
            sender.step()
        assert process.root == server.url
        sender.discovered("http://127.0.0.1:9")
        assert process.root == server.url
    assert [r.method for r in server.requests] == ["PUT", "POST"]


def test_a_discovered_server_takes_over_from_a_default_that_is_away(server, sources, dead_url, monkeypatch):
    monkeypatch.setattr("thunder_sdk.wire.DEFAULT_BASE_URL", dead_url)
    with use_sdk(sources=sources, threaded=False, environ={}) as process:
        thunder.program().heartbeat()
        assert not thunder.flush(30)
        process.sender.discovered(server.url)
        process.sender.step()
        assert process.sender.health is Health.REACHABLE
    assert server.requests


def test_shutdown_ends_the_thread_and_use_starts_another(server, caplog):
    with use_sdk(server.url):
        with thunder.program():
            thunder.flush(30)
        thunder.shutdown(30)
        first = [t for t in threading.enumerate() if t.name == "thunder-sdk"]
        for thread in first:
            thread.join(10)
        with thunder.program() as p:
            pass
    assert server.programs[p.id].outcome == "success"
    assert caplog.text == ""


def test_shutdown_and_init_say_what_they_leave_behind(dead_url, server, caplog):
    with use_sdk(dead_url):
        thunder.program().heartbeat()
        thunder.shutdown(0.5)
        assert "at shutdown" in caplog.text
        thunder.program().heartbeat()
        thunder.flush(5)
        thunder.init(server.url)
        assert "init replaces" in caplog.text
        with thunder.program() as p:
            pass
    assert server.programs[p.id].outcome == "success"


def test_a_sender_that_was_stopped_keeps_nobody_waiting(dead_url):
    with use_sdk(dead_url) as process:
        thunder.program().heartbeat()
        process.sender.stop()
        assert isinstance(process.sender.flush(60), thunder.ThunderConnectionError)


@pytest.mark.parametrize("loaded", [True, False])
def test_multiprocessing_is_asked_to_flush_if_it_is_there(server, monkeypatch, loaded):
    import multiprocessing.util

    if not loaded:
        monkeypatch.delitem(sys.modules, "multiprocessing.util")
    registry = multiprocessing.util._finalizer_registry

    def finalizers():
        return [f for f in list(registry.values()) if f._callback == process.sender.flush]

    with use_sdk(server.url) as process:
        with thunder.program():
            pass
        assert len(finalizers()) == loaded
        (thread,) = (t for t in threading.enumerate() if getattr(t, "_target", None) == process.sender._run)
        process.sender.stop()
        thread.join(60)
    assert finalizers() == []


def test_stopping_a_sender_that_never_started():
    with use_sdk("http://127.0.0.1:9") as process:
        process.sender.stop()
        assert not [t for t in threading.enumerate() if t.name == "thunder-sdk" and not t.daemon]
    _process._at_exit()
