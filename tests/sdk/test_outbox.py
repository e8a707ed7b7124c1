"""What waits to be sent: order, bounds and what gives way."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_sdk import _outbox
from thunder_sdk._outbox import BATCH, Close, Open, Outbox, Report


def phase(n):
    return Report(None, {"n": n}, expendable=True)


def resource(n):
    return Report(None, {"n": n}, expendable=False)


def drain(outbox):
    while batch := outbox.take():
        yield batch
        outbox.settle()


def test_reports_in_a_row_are_one_batch():
    outbox = Outbox()
    messages = [
        Open(None, {}, 0.0),
        phase(1),
        resource(2),
        phase(3),
        Close(None, "success"),
        phase(4),
        Open(None, {}, 0.0),
    ]
    for message in messages:
        outbox.put(message)
    assert len(outbox) == 7
    assert list(drain(outbox)) == [messages[:1], messages[1:4], messages[4:5], messages[5:6], messages[6:]]
    assert len(outbox) == 0


def test_batches_are_bounded():
    outbox = Outbox()
    for n in range(BATCH + 1):
        outbox.put(phase(n))
    assert [len(batch) for batch in drain(outbox)] == [BATCH, 1]


def test_what_is_taken_is_taken_again_until_settled():
    outbox = Outbox()
    outbox.put(phase(1))
    first = outbox.take()
    outbox.put(phase(2))
    assert outbox.take()[:1] == first
    assert len(outbox.take()) == 2


def test_phases_give_way_before_the_rest():
    outbox = Outbox(limit=4)
    for message in (Open(None, {}, 0.0), phase(1), resource(2), phase(3), Close(None, "success")):
        outbox.put(message)
    kept = [message for batch in drain(outbox) for message in batch]
    assert [type(message) for message in kept] == [Open, Report, Report, Close]
    assert [m.payload["n"] for m in kept[1:3]] == [2, 3]
    assert outbox.dropped == 1


def test_the_oldest_of_the_rest_gives_way_at_last():
    outbox = Outbox(limit=2)
    for n in range(4):
        outbox.put(resource(n))
    assert [m.payload["n"] for m in outbox.take()] == [2, 3]
    outbox.put(phase(4))  # the two are on their way: only itself can go
    assert len(outbox.take()) == 2
    assert outbox.dropped == 3


def test_marks_tell_what_has_left():
    outbox = Outbox()
    outbox.put(phase(1))
    mark = outbox.mark()
    outbox.put(Close(None, "success"))
    assert outbox.settled_through() < mark
    outbox.take()
    assert outbox.settled_through() < mark
    outbox.settle()
    assert mark <= outbox.settled_through()
    outbox.clear()
    assert outbox.settled_through() == float("inf")


@given(st.lists(st.sampled_from(["phase", "resource", "take", "settle"]), max_size=60), st.integers(1, 8))
def test_order_and_bound_always_hold(steps, limit):
    outbox, n, sent = Outbox(limit), 0, []
    for step in steps:
        if step == "take":
            outbox.take()
        elif step == "settle":
            sent += [m.payload["n"] for m in outbox.take()]
            outbox.settle()
        else:
            n += 1
            outbox.put({"phase": phase, "resource": resource}[step](n))
        assert len(outbox) <= limit
    sent += [m.payload["n"] for batch in drain(outbox) for m in batch]
    assert sent == sorted(sent)
    assert len(sent) + outbox.dropped == n


def test_a_queue_emptied_meanwhile_is_no_trouble(monkeypatch):
    """The head that `take` has seen may be dropped by another thread before it is popped."""
    outbox = Outbox()
    outbox.put(phase(1))
    pop = _outbox._pop
    monkeypatch.setattr(_outbox, "_pop", lambda messages: messages.clear() or pop(messages))
    assert outbox.take() == []


def test_many_threads_fill_it():
    outbox = Outbox(limit=1000)
    threads = [threading.Thread(target=lambda: [outbox.put(phase(n)) for n in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outbox) + outbox.dropped == 4000
    assert len(outbox) == pytest.approx(1000, abs=4)
