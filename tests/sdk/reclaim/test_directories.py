"""Removing directories below allowed roots, and nothing else, whatever happens meanwhile."""

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from thunder_sdk.reclaim import directories
from thunder_sdk.reclaim.endings import Absent, Ending, Failed, Spared


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path):
    """A directory that nothing may happen to."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").write_text("precious")
    yield outside
    assert (outside / "deep" / "file").read_text() == "precious"


def remove(path, *roots, time_is_up=lambda: False):
    directories.remove(str(path), roots, time_is_up)


def fill(directory):
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "a" / "b" / "file").write_text("x")
    (directory / "file").write_text("x")
    os.mkfifo(directory / "pipe")
    return directory


def test_all_that_is_in_it_goes(root, outside):
    target = fill(root / "work")
    (target / "link").symlink_to(outside)
    (target / "a" / "up").symlink_to("..")
    (target / "dangling").symlink_to("nowhere")
    other = fill(root / "work2")
    remove(target, Path("/nowhere"), root)
    assert not target.exists()
    assert (other / "a" / "b" / "file").exists()
    with pytest.raises(Absent):
        remove(target, root)
    with pytest.raises(Absent):
        remove(target / "deeper", root)


def test_only_below_a_root(root, outside, tmp_path):
    for path in (outside, root, tmp_path, f"{root}/../outside", "relative", "/"):
        with pytest.raises(Spared):
            remove(path, root)
    with pytest.raises(Spared, match="there are: none"):
        remove(root / "x")
    with pytest.raises(Failed, match="cannot be opened"):
        remove(tmp_path / "gone" / "x", tmp_path / "gone")


def test_a_root_may_be_spelled_by_a_link(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    for path in (root / "x", tmp_path / "alias" / "y"):
        fill(path)
        remove(path, tmp_path / "alias")
        assert not path.exists()


def test_no_link_is_followed_to_it(root, outside):
    (root / "work").symlink_to(outside)
    (root / "file").write_text("x")
    for path in (root / "work", root / "work" / "deep", root / "file"):
        with pytest.raises(Spared, match="never followed"):
            remove(path, root)


def test_deep_trees_need_no_descriptor_per_level(root):
    deep = os.open(root, os.O_RDONLY)
    for level in range(400):
        name = "work" if level == 0 else "d"
        os.mkdir(name, dir_fd=deep)
        below = os.open(name, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(os.open("file", os.O_CREAT, dir_fd=deep))
    os.close(deep)
    remove(root / "work", root)
    assert list(root.iterdir()) == []


@pytest.fixture
def open_root():
    """A root in which everybody may do as they like."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        yield Path(root)


def test_read_only_caches_go_too(open_root, unprivileged):
    with unprivileged():
        target = fill(open_root / "work")
        (target / "shut").mkdir()
        (target / "shut" / "file").write_text("x")
        for path, mode in ((target / "a" / "b", 0o555), (target / "a", 0o555), (target / "shut", 0o000)):
            path.chmod(mode)
        remove(target, open_root)
    assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what belongs to others")
def test_what_others_own_stays_and_is_named(open_root, unprivileged):
    with unprivileged():
        target = fill(open_root / "work")
        fill(open_root / "fixed" / "work")
    (target / "a" / "theirs").mkdir()
    (target / "a" / "theirs" / "file").write_text("x")
    (open_root / "shut").mkdir(mode=0o700)
    os.chown(open_root / "fixed", 0, 0)
    (open_root / "fixed").chmod(0o755)
    with unprivileged():
        for path, why in (
            (target, "file cannot be removed: Operation not permitted"),
            (open_root / "shut" / "x", "shut cannot be opened: Permission denied"),
            (open_root / "fixed" / "work", "work cannot be removed: Permission denied"),
        ):
            with pytest.raises(Failed, match=why) as failed:
                remove(path, open_root)
            assert not failed.value.retryable
    assert [path.name for path in target.iterdir()] == ["a"]


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from thunder_sdk.reclaim import directories, endings

root, outside, privileged = sys.argv[1:]

def attempt(place):
    try:
        directories.remove(f"{root}/{place}", [Path(root)], lambda: False)
    except endings.Ending as ending:
        return f"{type(ending).__name__} {ending}"

for place in ("work/a/mounted", "mounted"):
    subprocess.run(["mount", "--bind", outside, f"{root}/{place}"], check=True)
for place in ("work", "mounted", "mounted/deep"):
    print(attempt(place))
if privileged:
    os.chmod(outside, 0)
    os.setresuid(65534, 65534, 0)
    attempt("work")
    os.setresuid(0, 0, 0)
    print(oct(os.stat(outside).st_mode))
    os.chmod(outside, 0o755)
"""


def test_what_is_mounted_into_it_stays_as_it_is(open_root, outside):
    """Bound from the same file system, so that no device number tells."""
    root = fill(open_root / "work").parent
    (root / "mounted").mkdir()
    (root / "work" / "a" / "mounted").mkdir()
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    words = [str(root), str(outside), "" if os.geteuid() else "privileged"]
    done = subprocess.run(
        [*apart, sys.executable, "-c", MOUNTED, *words], capture_output=True, text=True, timeout=60
    )
    elsewhere = "mounted is on another file system than the directory allowed"
    assert done.stdout.splitlines() == [
        f"Failed {root}/work: mounted cannot be removed: something is mounted there",
        f"Spared {root}/mounted: {elsewhere}",
        f"Spared {root}/mounted/deep: {elsewhere}",
        *([] if os.geteuid() else ["0o40000"]),
    ], done.stderr
    assert [path.name for path in (root / "work").iterdir()] == ["a"]


def test_the_time_is_limited(root):
    target = fill(root / "work")
    left = iter([False, False, True])
    with pytest.raises(Failed, match=r"could be removed in time; \d entries are gone") as failed:
        remove(target, root, time_is_up=lambda: next(left))
    assert failed.value.retryable
    remove(target, root)
    assert not target.exists()


def test_who_goes_on_writing_into_it_is_outlasted(root):
    target = fill(root / "work")
    written = []

    def write_some_more():
        if len(written) < 3:
            written.append((target / "a" / f"more{len(written)}").write_text("x"))
        return False

    remove(target, root, time_is_up=write_some_more)
    assert not target.exists()


def test_another_directory_that_takes_its_name_stays(root):
    target = fill(root / "work")
    names = iter(["moved"])

    def swap():
        for name in names:
            target.rename(root / name)
            fill(target)
        return False

    with pytest.raises(Failed, match="Directory not empty") as failed:
        remove(target, root, time_is_up=swap)
    assert failed.value.retryable
    assert list((root / "moved").iterdir()) == []
    assert (target / "a" / "b" / "file").exists()


def test_one_that_vanishes_meanwhile_is_gone(root):
    target = fill(root / "work")
    names = iter(["moved"])

    def move():
        for name in names:
            target.rename(root / name)
        return False

    remove(target, root, time_is_up=move)
    assert list((root / "moved").iterdir()) == []


def test_nobody_who_renames_meanwhile_leads_it_astray(root, outside):
    """Directories and links to elsewhere take each other's place, in the tree and above it, all the time."""
    over = threading.Event()
    way, target = root / "way", root / "way" / "work"

    def rename_about():
        while not over.is_set():
            for place in (target / "a", target / "a" / "b", way):
                aside = root / "aside"
                with suppress(OSError):
                    place.rename(aside)
                    place.symlink_to(outside / "deep" if place.name == "b" else outside)
                with suppress(OSError):
                    place.unlink()
                with suppress(OSError):
                    aside.rename(place)

    renamer = threading.Thread(target=rename_about)
    renamer.start()
    try:
        for _ in range(150):
            # Filled where nobody renames: in place, a link would have us write to elsewhere ourselves.
            with suppress(OSError):
                fill(root / "new")
            with suppress(OSError):
                way.mkdir()
            with suppress(OSError):
                (root / "new").rename(target)
            with suppress(Ending):
                remove(target, root)
    finally:
        over.set()
        renamer.join()
    assert (outside / "deep" / "file").exists()
