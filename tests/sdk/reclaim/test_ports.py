"""Ports that one program at a time has, until its process ends."""

import multiprocessing
import socket
import subprocess
import sys

import pytest

from thunder_sdk.reclaim import ports
from thunder_sdk.reclaim.endings import Failed, Spared

LOW, HIGH = 21_000, 21_249

CLAIM = """
import sys
from thunder_sdk.reclaim import ports
leases = [ports.lease(None, int(sys.argv[1]), int(sys.argv[2])) for _ in range(int(sys.argv[3]))]
print(*(lease.port for lease in leases), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def claim():
    """Starts a process that leases so many ports, and keeps them until it ends."""
    started = []

    def claim(count, low=LOW, high=HIGH):
        command = [sys.executable, "-c", CLAIM, str(low), str(high), str(count)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield claim
    for process in started:
        process.kill()
        process.communicate()


def taken(process):
    return [int(port) for port in process.stdout.readline().split()]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_many_who_ask_at_once_get_different_ones(claim):
    processes = [claim(25) for _ in range(8)]
    got = [port for process in processes for port in taken(process)]
    assert len(got) == len(set(got)) == 200
    assert all(LOW <= port <= HIGH for port in got)


def test_a_crashed_owners_ports_return(claim):
    low, high = 21_300, 21_302
    process = claim(3, low, high)
    assert sorted(taken(process)) == [low, low + 1, high]
    assert ports.lease(None, low, high) is None
    with pytest.raises(Failed, match="still leased") as failed:
        ports.require_free(str(low))
    assert failed.value.retryable
    process.kill()
    process.wait(10)
    ports.require_free(str(low))
    leases = [ports.lease(None, low, high) for _ in range(3)]
    assert {lease.port for lease in leases} == {low, low + 1, high}
    for lease in leases:
        lease.release()
        lease.release()
    ports.require_free(str(high))


def test_the_preferred_one_if_it_is_free():
    preferred = free_port()
    first = ports.lease(preferred, LOW, HIGH)
    second = ports.lease(preferred, LOW, HIGH)
    assert first.port == preferred
    assert LOW <= second.port <= HIGH
    first.release()
    second.release()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_one_that_somebody_listens_at_is_not_given(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error}")
        listener.listen()
        port = listener.getsockname()[1]
        assert ports.lease(None, port, port) is None
    lease = ports.lease(None, port, port)
    assert lease.port == port
    lease.release()


def hold_in_child(lease, ready, done):
    lease.release()  # is none of the child's
    ready.set()
    done.wait(60)


def test_a_forked_child_neither_keeps_nor_ends_the_lease():
    port = free_port()
    lease = ports.lease(port, port, port)
    fork = multiprocessing.get_context("fork")
    ready, done = fork.Event(), fork.Event()
    child = fork.Process(target=hold_in_child, args=(lease, ready, done))
    child.start()
    try:
        assert ready.wait(60)
        with pytest.raises(Failed):
            ports.require_free(str(port))
        lease.release()
        ports.require_free(str(port))
    finally:
        done.set()
        child.join(60)
    assert child.exitcode == 0


def test_nor_does_a_started_program():
    port = free_port()
    lease = ports.lease(port, port, port)
    with subprocess.Popen(["sleep", "100"], close_fds=False) as other:
        lease.release()
        ports.require_free(str(port))
        other.kill()


@pytest.mark.parametrize("ref", ["", "x", "0", "65536", "²"])
def test_what_is_no_port(ref):
    with pytest.raises(Spared, match="no port"):
        ports.require_free(ref)


def test_without_ipv6(monkeypatch):
    """As on machines whose kernel has none: there is no such family."""
    monkeypatch.setattr(socket, "AF_INET6", 999)
    port = free_port()
    lease = ports.lease(port, port, port)
    assert lease.port == port
    lease.release()
