"""Removing what lives in a Docker engine, also in one that fails. With real ones: tests/server/reclaim."""

import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.fake_docker import FakeDocker, answers, babbles, dies, hangs
from thunder_sdk.reclaim.endings import Absent, Failed
from thunder_sdk.reclaim.engine import Engines
from thunder_sdk.reclaim.tasks import Site, reclaim

LABEL = {"thunder.program": "p1"}
OTHERS = {"thunder.program": "p2"}
ALL = ("container", "network", "volume", "image")


@pytest.fixture
def docker():
    with FakeDocker() as docker:
        yield docker


class Reclaimer:
    """Program p1 began a minute ago and has just ended."""

    def __init__(self, docker):
        self.docker = docker
        self.began = time.time() - 60

    def __call__(self, kind, ref, *, timeout=20.0, **more):
        now = time.time()
        claims = [{"program_id": "p1", "opened_at": self.began, "ended_at": now}]
        task = {
            "task": "t", "do": "reclaim", "host": "h", "now": now, "timeout_s": timeout, "attempt": 1,
            "program_id": "p1", "generation": 1, "kind": kind, "ref": ref, "claims": claims,
        }  # fmt: skip
        result = reclaim(task | more, Site.here(self.docker.url), now)
        assert result.pop("task") == "t"
        return result

    def old(self, kind, name, **details):
        return self.docker.add(kind, name, made=self.began - 1, **details)


@pytest.fixture
def removed(docker):
    return Reclaimer(docker)


def why(result, end="spared"):
    assert result["end"] == end, result
    return result["error"]


@pytest.mark.parametrize("kind", ALL)
def test_what_the_program_made_goes(docker, removed, kind):
    ref = docker.add(f"{kind}s", "new", labels=LABEL if kind == "volume" else {})
    assert removed(kind, ref) == {"end": "done"}
    assert docker.objects[f"{kind}s"] == {}
    assert "is gone" in why(removed(kind, ref), "absent")


@pytest.mark.parametrize("kind", ALL)
def test_what_was_there_before_stays(docker, removed, kind):
    removed.old(f"{kind}s", "old")
    assert f"{kind} old" in why(removed(kind, "old"))
    assert len(docker.objects[f"{kind}s"]) == 1
    docker.add(f"{kind}s", "new", labels=OTHERS)
    assert "another program's" in why(removed(kind, "new"))


@pytest.mark.parametrize("kind", ALL)
def test_a_label_or_having_been_seen_absent_proves_it(docker, removed, kind):
    removed.old(f"{kind}s", "labelled", labels=LABEL)
    removed.old(f"{kind}s", "seen")
    assert removed(kind, "labelled") == {"end": "done"}
    assert removed(kind, "seen", brought=True) == {"end": "done"}


def test_an_environment_is_a_container(docker, removed):
    docker.add("containers", "thunder-1", labels=LABEL)
    assert removed("environment", "thunder-1") == {"end": "done"}


def test_a_name_that_has_passed_to_another_object(docker, removed):
    docker.add("containers", "web")
    assert "another one's name now" in why(removed("container", "web", pin="f" * 64), "absent")
    (key,) = docker.objects["containers"]
    assert removed("container", "web", pin=key) == {"end": "done"}


def test_the_engines_clock_is_another_one():
    with FakeDocker(ahead=-7_200.0) as docker:
        removed = Reclaimer(docker)
        docker.add("containers", "new")
        removed.old("containers", "old")
        assert removed("container", "new") == {"end": "done"}
        assert "was there before" in why(removed("container", "old"))


def test_a_label_that_comes_from_the_image_proves_nothing(docker, removed):
    image = docker.add("images", "committed", labels=LABEL)
    removed.old("containers", "theirs", labels=LABEL, Image=image)
    assert "was there before" in why(removed("container", "theirs"))
    docker.add("containers", "ours", labels=LABEL, Image=docker.add("images", "plain"))
    assert removed("container", "ours") == {"end": "done"}


def test_when_a_volume_was_made(tmp_path, removed):
    """From its directory, where that can be read; else from an engine whose word on it is good."""
    content = tmp_path / "v" / "_data"
    content.mkdir(parents=True)
    removed.docker.add("volumes", "near", made=removed.began - 1, Mountpoint=str(content))
    assert removed("volume", "near") == {"end": "done"}
    removed.docker.add("volumes", "far")
    assert "cannot be told" in why(removed("volume", "far"))
    with FakeDocker(api_version="1.43") as newer:
        newer_removed = Reclaimer(newer)
        newer.add("volumes", "far", made=time.time() - 1)
        newer.add("volumes", "plugged", made=time.time() - 1, Driver="nfs", Mountpoint="/mnt/x")
        newer_removed.old("volumes", "old")
        assert newer_removed("volume", "far") == {"end": "done"}
        assert "cannot be told" in why(newer_removed("volume", "plugged"))
        assert "was there before" in why(newer_removed("volume", "old"))


@pytest.mark.parametrize("kind", ["network", "volume", "image"])
def test_what_others_use_stays(docker, removed, kind):
    ref = docker.add(f"{kind}s", "shared", labels=LABEL)
    user = docker.add("containers", "web", uses=[ref])
    assert "used by container web, which is no program's" in why(removed(kind, ref))
    docker.objects["containers"][user]["Labels"] = OTHERS
    assert "used by container web, of program p2" in why(removed(kind, ref))
    docker.objects["containers"][user] |= {"Labels": LABEL, "Names": None}
    result = removed(kind, ref)
    assert "still used by the program's container" in why(result, "failed")
    assert result["retryable"]


def test_an_image_goes_with_its_last_name(docker, removed):
    key = docker.add("images", "mine:1", RepoTags=["mine:1", "mine:2"])
    docker.add("containers", "web", uses=[key])
    assert removed("image", "mine:1") == {"end": "done"}
    assert docker.objects["images"][key]["RepoTags"] == ["mine:2"]
    docker.objects["containers"].clear()
    assert removed("image", "mine:2") == {"end": "done"}
    assert docker.objects["images"] == {}


def test_an_image_named_by_its_id_goes_with_all_names(docker, removed):
    key = docker.add("images", "mine:1", RepoTags=["mine:1", "mine:2"])
    assert removed("image", key[:12]) == {"end": "done"}
    assert docker.objects["images"] == {}


def test_below_an_image_only_nameless_layers_of_the_program_go(docker, removed):
    older = removed.old("images", "older", RepoTags=[])
    layer = docker.add("images", "layer", RepoTags=None, Parent=older)
    docker.add("images", "mine", Parent=layer)
    assert removed("image", "mine") == {"end": "done"}
    assert list(docker.objects["images"]) == [older]
    named = docker.add("images", "named")
    docker.add("images", "mine", Parent=named)
    assert removed("image", "mine") == {"end": "done"}
    assert list(docker.objects["images"]) == [older, named]
    docker.add("images", "mine", Parent="gone")
    assert removed("image", "mine") == {"end": "done"}
    docker.add("images", "mine", Parent=docker.add("images", "layer", RepoTags=[]))
    assert removed("image", "mine") == {"end": "done"}
    assert list(docker.objects["images"]) == [older, named]


def test_an_image_that_others_are_built_on_stays(docker, removed):
    docker.add("images", "base")
    docker.fail("DELETE /images/.*", answers(409, "conflict: image has dependent child images"))
    assert "other images are built on it" in why(removed("image", "base"))
    docker.fail("DELETE /images/.*", answers(409, "conflict: something else"))
    result = removed("image", "base")
    assert "something else" in why(result, "failed")
    assert result["retryable"]


def test_a_removal_that_is_in_progress_already_is_waited_for(docker, removed):
    docker.add("containers", "c")
    docker.fail("DELETE /containers/.*", answers(409, "removal of container c is already in progress"))
    assert removed("container", "c") == {"end": "done"}
    assert docker.seen[-1].endswith("/wait")
    docker.add("containers", "c")
    docker.fail("DELETE /containers/.*", answers(409, "removal of container c is already in progress"))
    docker.fail("POST /containers/.*/wait", answers(404, "No such container"))
    assert removed("container", "c") == {"end": "done"}


@pytest.mark.parametrize(
    ("fault", "words", "retryable"),
    [
        (answers(500, "write /var/lib/docker: no space left on device"), "no space left", True),
        (answers(500, "driver failed to remove root filesystem: device or resource busy"), "busy", True),
        (answers(403, "authorization denied by plugin"), "denied by plugin", False),
        (dies, "no use of the engine", True),
        (hangs, "within 0.3 s", True),
    ],
)
@pytest.mark.parametrize("kind", ALL)
def test_an_engine_that_fails_half_way(docker, removed, kind, fault, words, retryable):
    ref = docker.add(f"{kind}s", "c", labels=LABEL)
    docker.fail("DELETE .*", fault)
    result = removed(kind, ref, timeout=0.3 if fault is hangs else 20.0)
    assert words in why(result, "failed")
    assert result["retryable"] is retryable
    docker.faults.clear()  # a busy machine may not have come that far
    assert removed(kind, ref)["end"] in ("done", "absent")


@pytest.mark.parametrize(
    ("fault", "words"),
    [(babbles, "no use of the engine"), (hangs, "within 0.3 s"), (answers(503, "starting"), "starting")],
)
def test_an_engine_that_does_not_even_say_who_it_is(docker, removed, fault, words):
    docker.fail("GET /version", fault)
    result = removed("container", "c", timeout=0.3)
    assert words in why(result, "failed")
    assert result["retryable"]


def test_no_engine_at_all(docker, removed):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for docker.url in ("unix:///nowhere/docker.sock", f"tcp://127.0.0.1:{nobody.getsockname()[1]}"):
            result = removed("container", "c")
            assert f"no use of the engine at {docker.url}" in why(result, "failed")
            assert result["retryable"]


def test_without_the_package(removed, monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    result = removed("container", "c")
    assert "thunder-sdk[docker]" in why(result, "failed")
    assert not result["retryable"]


def test_an_unknown_kind_is_left_alone(removed):
    assert "no kind of resource" in why(removed("cloud", "c"))


def test_what_is_no_docker_object_needs_no_engine(removed, tmp_path):
    removed.docker.url = ""
    (tmp_path / "work").mkdir()
    assert removed("directory", str(tmp_path / "work")) == {"end": "done"}
    assert removed("port", "1")["end"] == "done"
    with subprocess.Popen(["sleep", "100"]) as child:
        assert "without its start time" in why(removed("process", str(child.pid)))
        child.kill()


def test_a_site_is_this_machine_and_its_engine(tmp_path):
    here = Site.here(None)
    assert (here.engine, len(here.hosts)) == ("unix:///var/run/docker.sock", 1)
    remote = Site.here("tcp://box:2375", names=["box", "box"], roots=[tmp_path])
    assert (remote.hosts, remote.engine) == (("box", "tcp://box:2375"), "tcp://box:2375")
    assert remote.roots == (tmp_path,)


@pytest.mark.parametrize(
    ("kind", "ref"),
    [
        ("volume", "../volumes"), ("network", "../volumes/v"), ("container", "c/json"), ("container", "a?b"),
        ("image", "../volumes/v"), ("image", "a/../../volumes/v"), ("image", "a#b"), ("image", "a//b"),
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_in_the_engines_api(docker, removed, kind, ref):
    assert "is no name or id" in why(removed(kind, ref))
    assert docker.seen == ["GET /version"]


def test_connections_are_kept_for_the_next_who_needs_one(docker):
    engines = Engines(docker.url)
    with engines.lend(20.0) as first:
        assert first.clock().ahead == 0.0
        with engines.lend(20.0) as second:
            assert second is not first
    docker.seen.clear()
    with suppress(Absent), engines.lend(5.0) as again:
        assert again is first
        assert (again.timeout, again.api.timeout) == (5.0, 5.0)
        again.clock()  # anew: it may have been set meanwhile
        raise Absent("is an answer like any other")
    assert docker.seen == ["GET /info"]
    with suppress(Failed), engines.lend(20.0) as failing:
        assert failing is first
        raise Failed("it hangs", retryable=True)
    with engines.lend(20.0) as other:
        assert other is second
        with engines.lend(20.0) as new:
            assert new is not first
    engines.close()
    engines.close()
