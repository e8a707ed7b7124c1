"""Ending processes that are the declared ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from thunder_sdk.reclaim import processes
from thunder_sdk.reclaim.endings import Absent, Failed, Spared

STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
)


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child
        child.kill()


def ref(child):
    return f"{child.pid}:{processes.start_time(child.pid)}"


def end(name, timeout=10.0, **options):
    processes.end(name, timeout, **{"declared_before": time.time(), **options})


def test_it_is_told_to_end(child):
    end(ref(child))
    assert child.wait(10) == -signal.SIGTERM
    with pytest.raises(Absent, match="is gone"):
        end(f"{child.pid}:1")


def test_one_that_does_not_listen_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as stubborn:
        stubborn.stdout.readline()
        end(ref(stubborn), 0.2)
        assert stubborn.wait(10) == -signal.SIGKILL


def test_one_that_is_stopped_is_killed(child):
    child.send_signal(signal.SIGSTOP)
    end(ref(child), 0.2)
    assert child.wait(10) < 0


def test_another_one_with_its_pid_is_not_touched(child):
    started = int(processes.start_time(child.pid))
    with pytest.raises(Absent, match="another one's"):
        end(f"{child.pid}:{started - 1}")
    with pytest.raises(Absent, match="earlier boot"):
        end(ref(child), declared_before=time.time() - 3600)
    assert child.poll() is None


def test_one_that_has_ended_but_was_not_waited_for_is_gone(child):
    name = ref(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(Absent):
        end(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x", "names no process"), ("12:", "names no process"), ("0:1", "names no process"),
        ("1:1", "first of this machine"), ("77", "without its start time"),
        ("own", "the one that reclaims"),
    ],
)  # fmt: skip
def test_no_proof_no_signal(name, why):
    if name == "own":
        name = f"{os.getpid()}:5"
    with pytest.raises(Spared, match=why):
        end(name, protected=frozenset({os.getpid()}))


def test_a_thread_is_no_process():
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        native = pool.submit(threading.get_native_id).result()
        pool.submit(done.wait, 30)
        with pytest.raises((Failed, Absent)):
            end(f"{native}:5")
        done.set()


def test_another_users_is_not_ours_to_end(child, unprivileged):
    with unprivileged(), pytest.raises(Failed, match="another user") as failed:
        end(ref(child))
    assert not failed.value.retryable


def test_one_that_takes_its_time_is_tried_again_later():
    hold = "import sys; held = bytearray(200_000_000); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as large:
        large.stdout.readline()
        with pytest.raises(Failed, match="though it was killed") as failed:
            end(ref(large), 0.0)
        assert failed.value.retryable
        large.wait(30)
    with pytest.raises(Absent):
        end(f"{large.pid}:5")


def test_a_start_time_is_of_a_process():
    assert processes.start_time(os.getpid()).isdigit()
    assert processes.start_time(2**22 + 1) is None
