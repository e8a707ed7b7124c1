"""What programs leave behind while the server is away is removed here, and reported when it is back."""

import logging
import socket
import subprocess
import sys
import threading

import pytest

import thunder_sdk as thunder
from tests.fake_docker import FakeDocker, answers
from thunder_sdk import _reclaimer
from thunder_sdk._holdings import Holdings
from thunder_sdk.reclaim.tasks import Site
from thunder_sdk.testing import RecordingServer, use_sdk
from thunder_sdk.wire import EventType


@pytest.fixture
def docker(monkeypatch):
    with FakeDocker() as docker:
        monkeypatch.setenv("DOCKER_HOST", docker.url)
        yield docker


@pytest.fixture
def roots(monkeypatch, tmp_path):
    monkeypatch.setenv("THUNDER_RESOURCE_ROOT", f"{tmp_path}:/nowhere")
    return tmp_path


def made(root, name="work"):
    (root / name).mkdir()
    (root / name / "file").write_text("x")
    return root / name


def test_everything_that_was_declared_goes_in_a_safe_order(dead_url, docker, roots):
    with use_sdk(dead_url) as process, subprocess.Popen(["sleep", "100"]) as child:
        with thunder.program() as p:
            p.resources.directory(made(roots))
            for kind in ("image", "volume", "network", "container"):
                label = {"labels": {"thunder.program": p.id}} if kind == "volume" else {}
                docker.add(f"{kind}s", f"a-{kind}", **label)
                getattr(p.resources, kind)(f"a-{kind}")
            docker.add("containers", "kept")
            p.resources.container("kept", keep=True)
            docker.add("containers", "released")
            p.resources.container("released").release()
            docker.add("containers", "elsewhere")
            p.resources.container("elsewhere", host="another-machine")
            p.resources.process(child)
        assert process.reclaimer.wait(30)
        assert child.wait(10) != 0
    assert not (roots / "work").exists()
    left = [found["Name"] for kind in docker.objects.values() for found in kind.values()]
    assert left == ["kept", "released", "elsewhere"]
    deleted = [request.split("/")[1] for request in docker.seen if request.startswith("DELETE")]
    assert list(dict.fromkeys(deleted)) == ["containers", "networks", "volumes", "images"]


def test_what_the_program_did_not_bring_stays(dead_url, docker, roots, caplog):
    docker.add("containers", "web", made=1.0)
    with use_sdk(dead_url) as process:
        with thunder.program() as p:
            p.resources.container("web")
            p.resources.directory("/nowhere-else")
        assert process.reclaimer.wait(30)
    assert len(docker.objects["containers"]) == 1
    told = [record.getMessage() for record in caplog.records if "is left here" in record.getMessage()]
    assert f"container web of program {p.id} is left here: container web was there before" in told[0]
    assert "directory /nowhere-else" in told[1]


def test_a_server_that_hears_of_the_end_does_it_itself(server, sdk, roots):
    with thunder.program() as p:
        p.resources.directory(made(roots))
    assert sdk.reclaimer.wait(30)
    assert (roots / "work").exists()


def test_a_server_that_is_back_is_told_what_is_gone(roots):
    """Whoever makes a directory of the same name meanwhile must not lose it to a report of yesterday."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with use_sdk(f"http://127.0.0.1:{holder.getsockname()[1]}", timeout=5) as process:
            with thunder.program() as p:
                p.resources.directory(made(roots))
                p.resources.directory(made(roots, "kept"), keep=True)
            assert process.reclaimer.wait(30)
            with RecordingServer() as server:
                server.fail_next.extend([200, 200, 503])
                process.sender.root = server.url
                assert thunder.flush(30)
    last = server.events[-1]
    assert (last["type"], last["ref"]) == ("resource.released", str(roots / "work"))
    assert [e["type"] for e in server.events].count("resource.released") == 2  # once more after the 503
    assert [request.method for request in server.requests][-1] == "DELETE"
    assert server.programs[p.id].outcome == "success"


def test_a_server_that_refuses_the_key_does_nothing_either(roots):
    with RecordingServer(api_key="right") as server, use_sdk(server.url, api_key="wrong") as process:
        with thunder.program() as p:
            p.resources.directory(made(roots))
            assert not thunder.flush(30)
        assert process.reclaimer.wait(30)
        assert not (roots / "work").exists()
        with thunder.program() as p:
            p.resources.directory(made(roots))
        assert process.reclaimer.wait(30)
        assert not (roots / "work").exists()


def test_an_end_that_waits_to_be_told_when_the_server_goes_away(dead_url, roots):
    with use_sdk(dead_url, threaded=False) as process:
        p = thunder.program()
        p.resources.directory(made(roots))
        p.close()
        assert process.reclaimer.wait(30)
    assert not (roots / "work").exists()


def test_the_agent_does_not_wait(dead_url, docker):
    hold = threading.Event()
    docker.fail("DELETE /containers/.*", lambda handler: hold.wait(60) and None)
    with use_sdk(dead_url) as process:
        with thunder.program() as p:
            docker.add("containers", "c")
            p.resources.container("c")
        assert not process.reclaimer.wait(0.0)
        hold.set()
        assert process.reclaimer.wait(30)


def held(directory, host):
    holdings = Holdings()
    payload = {"kind": "directory", "ref": str(directory), "host": host, "keep": False}
    holdings.note(EventType.RESOURCE_DECLARED, payload)
    return holdings


CLAIM = {"program_id": "p", "opened_at": 0.0, "ended_at": 1.0}


def test_it_is_tried_again_and_given_up_in_the_end(docker, caplog):
    reclaimer = _reclaimer.Reclaimer(pause=0.0)
    site = Site.here(docker.url, names=["h"])
    for name, failures in (("twice", 2), ("always", 3)):
        docker.add("containers", name, made=0.5)
        docker.fail("DELETE /containers/.*", answers(500, "no space left on device"), failures)
        holdings = Holdings()
        payload = {"kind": "container", "ref": name, "host": "h", "keep": False}
        holdings.note(EventType.RESOURCE_DECLARED, payload)
        reclaimer.put(holdings, CLAIM, lambda: site)
        assert reclaimer.wait(30)
        assert holdings.gone == ([("container", "twice", "h")] if name == "twice" else [])
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "container always of program p is left here" in told
    assert "no space left" in told


def test_many_at_once_are_worked_off_by_a_few(tmp_path):
    reclaimer = _reclaimer.Reclaimer()
    site = Site.here(None, names=["h"], roots=[tmp_path])
    before = threading.active_count()
    for index in range(50):
        reclaimer.put(held(made(tmp_path, f"d{index}"), "h"), CLAIM, lambda: site)
        assert threading.active_count() <= before + _reclaimer.AT_ONCE
    assert reclaimer.wait(30)
    assert list(tmp_path.iterdir()) == []


class Broken(Holdings):
    """Whose list of what has gone cannot be written."""

    @property
    def gone(self):
        raise RuntimeError("a bug")

    @gone.setter
    def gone(self, value):
        pass


def test_a_bug_ends_nothing_else(tmp_path, caplog):
    reclaimer = _reclaimer.Reclaimer()
    site = Site.here(None, names=["h"], roots=[tmp_path])
    broken = Broken()
    broken._declared = held(made(tmp_path, "a"), "h")._declared
    reclaimer.put(broken, CLAIM, lambda: site)
    reclaimer.put(held(made(tmp_path, "b"), "h"), CLAIM, lambda: site)
    assert reclaimer.wait(30)
    assert "please report this as a bug" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_on_its_way_out_does_it_itself(tmp_path, monkeypatch):
    def no_more_threads(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    reclaimer = _reclaimer.Reclaimer()
    site = Site.here(None, names=["h"], roots=[tmp_path])
    reclaimer.put(held(made(tmp_path, "a"), "h"), CLAIM, lambda: site)
    reclaimer.put(held(made(tmp_path, "b"), "h"), CLAIM, lambda: site)
    assert not reclaimer.wait(0.0)
    assert reclaimer.wait(30)
    assert list(tmp_path.iterdir()) == []


LEAVES = """
import sys, thunder_sdk as thunder
thunder.init(sys.argv[1])
async def main():
    with thunder.program() as p:
        p.resources.directory(sys.argv[2])
import asyncio
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_that_ends_at_once_still_does_it(dead_url, roots):
    work = made(roots)
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, dead_url, str(work)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not work.exists()
