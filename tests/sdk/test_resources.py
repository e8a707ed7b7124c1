"""What programs hold, and environments as values."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

import thunder_sdk as thunder

pytestmark = pytest.mark.usefixtures("sdk")


def test_declared_and_released(server, monkeypatch, tmp_path):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    with thunder.program() as p:
        with p.resources.container("c1") as container:
            assert (container.ref, container.kind) == ("c1", "container")
        container.release()
        p.resources.image("img", keep=True)
        p.resources.network("net", host="ssh://box")
        p.resources.volume("vol")
        p.resources.directory("work")
        p.resources.directory(pathlib.Path("/tmp/x"))
    me = socket.gethostname()
    assert [(e["type"], e["kind"], e["ref"], e["host"], e.get("keep")) for e in server.events] == [
        ("resource.declared", "container", "c1", me, False),
        ("resource.released", "container", "c1", me, None),
        ("resource.declared", "image", "img", me, True),
        ("resource.declared", "network", "net", "ssh://box", False),
        ("resource.declared", "volume", "vol", me, False),
        ("resource.declared", "directory", str(tmp_path / "work"), me, False),
        ("resource.declared", "directory", "/tmp/x", me, False),
    ]
    assert repr(container) == f"<Resource container c1 on {me}>"


def test_docker_objects_live_where_the_engine_is(server, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://docker:2375")
    with thunder.program() as p:
        assert p.resources.container("c").host == "tcp://docker:2375"
        assert p.resources.directory("/d").host == socket.gethostname()


def test_processes_are_named_by_pid_and_start_time():
    with thunder.program() as p:
        own = p.resources.process(os.getpid()).ref
        pid, _, started = own.partition(":")
        assert int(pid) == os.getpid()
        assert int(started) > 0
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            assert p.resources.process(child).ref.startswith(f"{child.pid}:")
        assert p.resources.process(child).ref == str(child.pid)  # gone: no start time to be had
        assert p.resources.process("12:34").ref == "12:34"
        for bad in (0, -1, True, "x", "12 34", 1.5, type("P", (), {"pid": None})()):
            with pytest.raises(thunder.ThunderConfigError, match="no running process"):
                p.resources.process(bad)


@pytest.mark.parametrize(
    ("kind", "ref", "options"),
    [
        ("container", "", {}), ("image", 7, {}), ("volume", "a b", {}), ("network", "n\n", {}),
        ("image", "a\0", {}), ("directory", "", {}), ("directory", None, {}), ("directory", "a\0b", {}),
        ("directory", b"a", {}), ("container", "c", {"host": ""}), ("container", "c", {"host": 5}),
        ("directory", "d", {"host": "a b"}), ("directory", "d" * 5_000, {}),
        ("image", "i", {"host": "h" * 256}),
        ("container", "c", {"keep": "yes"}),
    ],
)  # fmt: skip
def test_mistakes_declare_nothing(server, kind, ref, options):
    with thunder.program() as p, pytest.raises(thunder.ThunderConfigError):
        getattr(p.resources, kind)(ref, **options)
    assert server.events == []


def test_what_a_program_holds_goes_last_when_the_queue_is_full(server):
    from thunder_sdk.testing import use_sdk

    with use_sdk(server.url, threaded=False):
        p = thunder.program().__enter__()
        p.resources.container("c")
        for _ in range(6_000):
            with p.acting("t"):
                pass
        p.close()
        assert thunder.flush(60)
    assert (server.events[0]["type"], server.events[0]["ref"]) == ("resource.declared", "c")
    assert len(server.events) == 9_998
    assert server.programs[p.id].outcome == "success"


def test_an_environment_is_a_value():
    full = thunder.DockerEnvironment(
        "python:3.12", command=["sleep", "inf"], setup=["pip install x"], env={"A": "1"}, mounts=["/a:/b:ro"],
        workdir="/w", network="n", limits={"cpus": 2, "memory": "4g"},
    )  # fmt: skip
    assert full.payload() == {
        "kind": "docker", "image": "python:3.12", "command": ["sleep", "inf"], "setup": ["pip install x"],
        "env": {"A": "1"}, "mounts": ["/a:/b:ro"], "workdir": "/w", "network": "n",
        "limits": {"cpus": 2, "memory": "4g"},
    }  # fmt: skip
    assert thunder.DockerEnvironment("a") == thunder.DockerEnvironment("a")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", ""), ("image", None), ("command", "sleep"), ("setup", "pip"), ("setup", [1]), ("setup", 5),
        ("mounts", "x"), ("workdir", 7), ("network", ""), ("env", [1]), ("env", {"A": 1}),
        ("limits", {1: 2}), ("limits", "x"),
    ],
)  # fmt: skip
def test_environments_are_checked(field, value):
    with pytest.raises(thunder.ThunderConfigError, match=field):
        thunder.DockerEnvironment(**{"image": "a", field: value})
