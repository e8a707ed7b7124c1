"""Forks, other processes, signals and the end of the interpreter."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import openai
import pytest

import thunder_sdk as thunder
from thunder_sdk import _process
from thunder_sdk.testing import use_sdk

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # forking is what is tested


def in_child(work):
    """Runs `work` in a forked child; fails with what went wrong there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            code = 0
        except BaseException as error:
            os.write(writing, repr(error).encode()[:4000])
            code = 1
        os._exit(code)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        assert status == 0, pipe.read()


def of_child(server, process):
    """The batches that another process than `process` sent."""
    ours = process.sender.emitter
    return [r for r in server.requests if (r.body or {}).get("emitter", ours) != ours]


def test_a_forked_child_holds_a_handle(server, sdk):
    def work():
        assert thunder.current_program() is p
        assert p.headers()["X-Thunder-Program-Id"] == p.id
        with thunder.acting("bash"):
            pass
        p.heartbeat()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client:
            thunder.wrap_openai(client).chat.completions.create(model="m", messages=[])
        with thunder.program(program_id="own") as own:
            assert own.parent_id == p.id
        p.close("error")
        p.__exit__(None, None, None)
        assert p.outcome is None
        assert thunder.flush(30)

    with thunder.program() as p:
        thunder.flush(30)
        in_child(work)
        assert thunder.current_program() is p
        thunder.flush(30)
        events = [e for batch in of_child(server, sdk) for e in batch.body["events"]]
        assert [(e["type"], e["seq"]) for e in events] == [("acting.started", 1), ("acting.finished", 2)]
        assert server.calls[0].headers["x-thunder-program-id"] == p.id
        assert server.programs["own"].outcome == "success"
        assert server.programs[p.id].outcome is None
    assert server.programs[p.id].outcome == "success"


def test_the_parents_queue_stays_the_parents(server, sdk):
    server.gate.clear()
    p = thunder.program().__enter__()
    with p.acting("parent's"):
        pass

    def work():
        assert len(_process.here().sender.outbox) == 0
        with p.acting("child's"):
            pass
        assert thunder.flush(60)

    threading.Timer(0.2, server.gate.set).start()
    in_child(work)
    p.close()
    tools = [e["tool"] for e in server.events if e["type"] == "acting.started"]
    assert sorted(tools) == ["child's", "parent's"]


def test_a_program_made_before_the_fork_may_be_run_in_the_child(server, sdk):
    p = thunder.program()

    def work():
        with p:
            pass
        assert p.outcome == "success"

    in_child(work)
    assert server.programs[p.id].outcome == "success"


def test_a_child_forked_at_any_moment_can_report(server, sdk):
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            with thunder.program(), thunder.acting("busy"):
                pass

    def work():
        with thunder.acting("child"):
            pass
        assert thunder.flush(60)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    with thunder.program() as p:
        for thread in threads:
            thread.start()
        for _ in range(8):
            in_child(work)
        stop.set()
        for thread in threads:
            thread.join()
    assert [e.get("tool") for e in server.events if e["program_id"] == p.id].count("child") == 8


def report_from_pool(context):
    with thunder.attach(context) as p, p.acting("pool"):
        return os.getpid()


def test_children_of_multiprocessing_flush_when_they_leave(server, sdk):
    def work():
        with thunder.acting("multiprocessing"):
            pass

    with thunder.program():
        thunder.flush(30)
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(60)
        assert child.exitcode == 0
    assert [e.get("tool") for e in server.events] == ["multiprocessing", None]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pools(server, sdk, method, monkeypatch):
    monkeypatch.setenv("THUNDER_BASE_URL", server.url)
    with thunder.program() as p:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            assert pool.submit(report_from_pool, p.serialize()).result(60) != os.getpid()
        server.wait_for(lambda s: len(s.events) == 2)
    assert {e["program_id"] for e in server.events} == {p.id}


AGENT = """
import thunder_sdk as thunder
with thunder.acting("outside"):
    pass
with thunder.program("inside") as p:
    pass
q = thunder.program("left open").__enter__()
q.heartbeat()
print(thunder.current_program().id, p.parent_id)
"""


def run(code, env=None, timeout=60, **kw):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
        **kw,
    )


def test_a_subprocess_finds_its_program_and_flushes_at_exit(server, sdk):
    with thunder.program(group="g") as p:
        done = run(AGENT, env=p.env())
        own_id, parent_id = done.stdout.split()
        assert parent_id == p.id
        assert done.stderr == ""
        inside, left = (q for q in server.programs.values() if q.id != p.id)
        assert (inside.fields["name"], inside.outcome, inside.fields["group"]) == ("inside", "success", "g")
        assert (left.id, left.outcome) == (own_id, None)
        assert [e["type"] for e in left.events] == ["heartbeat"]
        assert [e["tool"] for e in server.programs[p.id].events if "tool" in e] == ["outside"]


def test_the_sender_imports_nothing(server):
    """A child forked while another thread imports a module could never import it again."""
    code = """if True:
        import sys, threading
        class Watch:
            def find_spec(self, name, path=None, target=None):
                if threading.current_thread().name == "thunder-sdk":
                    print(name)
        sys.meta_path.insert(0, Watch())
        import thunder_sdk as thunder
        with thunder.program(), thunder.acting("bash"):
            pass
        print(thunder.flush(30))
    """
    done = run(code, env={**os.environ, "THUNDER_BASE_URL": server.url.replace("127.0.0.1", "localhost")})
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.slow
def test_leaving_waits_two_seconds_at_most(server):
    server.gate.clear()
    before = time.monotonic()
    run(
        "import thunder_sdk as t; t.program().heartbeat()", env={**os.environ, "THUNDER_BASE_URL": server.url}
    )
    assert 1.5 < time.monotonic() - before < 30


def test_leaving_without_having_done_anything():
    done = run("import thunder_sdk")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("ending", ["sys.exit(0)", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_ways_to_leave(server, ending):
    code = f"import sys, thunder_sdk as t\nwith t.program():\n    {ending}"
    env = {**os.environ, "THUNDER_BASE_URL": server.url}
    subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    outcome = {"sys.exit(0)": "success", "sys.exit(3)": "error"}.get(ending, "dropped")
    assert [p.outcome for p in server.programs.values()] == [outcome]


def test_sdk_calls_in_a_signal_handler_do_not_deadlock(server, sdk):
    calls = 0

    def handler(*_):
        nonlocal calls
        calls += 1
        with thunder.acting("signal"):
            pass
        thunder.program(program_id=f"s{calls}").__enter__().close()
        # Armed again only here: on a slow machine a periodic signal would interrupt its own handler for ever.
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)

    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        with thunder.program() as p:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)
            while calls < 20:
                with p.acting("main"):
                    thunder.program().__enter__().close()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert thunder.flush(60)
    assert server.programs["s20"].outcome == "success"


SLEEPER = """
import logging, sys
import thunder_sdk as thunder
thunder.init(lease=0.5)
with thunder.program(program_id="sleeper") as p:
    thunder.flush(30)
    print("ready", flush=True)
    sys.stdin.readline()
    print(p.status, p.outcome, flush=True)
    p.headers()
    thunder.flush(30)
    print(p.generation, p.status, flush=True)
"""


@pytest.mark.slow
def test_a_process_stopped_for_longer_than_its_lease(server):
    env = {**os.environ, "THUNDER_BASE_URL": server.url}
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stdout.readline() == "ready\n"
        agent.send_signal(signal.SIGSTOP)
        time.sleep(0.8)  # the lease runs in real time
        server.terminate("sleeper", "lease_expired")
        agent.send_signal(signal.SIGCONT)
        out, err = agent.communicate("\n", timeout=60)
    assert out.splitlines() == ["terminated lease_expired", "2 active"]
    assert err.count("has ended") == 1


def test_another_epoch_in_this_process(server):
    """What a fork does to the child, looked at from inside."""
    epoch = _process.epoch()
    with use_sdk(server.url) as process:
        p = thunder.program().__enter__()
        thunder.flush(30)
        try:
            _process._after_fork_in_child()
            assert _process.here().sender.emitter != process.sender.emitter
            assert not p._life.owned
            before = _process.install(None)
            _process._after_fork_in_child()
            _process.install(before)
        finally:
            _process._epoch[0] = epoch
            process.sender.stop()
        p.close()
    assert server.programs[p.id].outcome == "success"
