"""Removing a directory below an allowed root, whatever happens to it meanwhile.

Everything goes through descriptors of directories that were opened without following links: a name is only
ever looked up in a directory that is held open, so nobody who renames things or puts a link in the place of a
directory can lead the removal out of the tree. What is mounted into the tree is left alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from thunder_sdk.reclaim.endings import Absent, Failed, Spared

_NO_LINK: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = _NO_LINK | os.O_RDONLY
_NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
_FILLED: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_DEEPEST: Final = 64  # levels, and so descriptors, held open; what lies deeper is moved up


def remove(ref: str, roots: Sequence[Path], time_is_up: Callable[[], bool]) -> None:
    """Removes the directory `ref` and all in it. Raises an `Ending` unless it is gone then.

    It must be strictly below one of `roots`, which are trusted as they are. `time_is_up` is asked between two
    files; what has been removed until then stays removed.
    """
    root, below = _below(Path(ref), roots)
    *way, name = below.parts
    with ExitStack() as held:
        try:
            here = _held(held, os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise Failed(f"{root} cannot be opened: {error.strerror}", retryable=False) from error
        mount = _mount(here)
        for part in way:
            here = _held(held, _enter(here, part, mount, ref))
        top = _held(held, _enter(here, name, mount, ref))
        _Tree(ref, top, mount, time_is_up).empty()
        try:
            os.rmdir(name, dir_fd=here)
        except FileNotFoundError:
            return
        except OSError as error:
            # Not empty: something moved away meanwhile and another directory is called so now.
            retryable = error.errno in _FILLED
            raise Failed(f"{ref} cannot be removed: {error.strerror}", retryable=retryable) from error


def _held(stack: ExitStack, handle: int) -> int:
    stack.callback(os.close, handle)
    return handle


def _below(path: Path, roots: Sequence[Path]) -> tuple[Path, Path]:
    """The root that `path` lies below, and the way from there."""
    if not path.is_absolute() or ".." in path.parts:
        raise Spared(f"{path} is no absolute path")
    for root in roots:
        for spelling in (root, root.resolve()):  # itself a link, say, and the path names either
            if path.is_relative_to(spelling) and path != spelling:
                return spelling.resolve(), path.relative_to(spelling)
    allowed = ", ".join(map(str, roots)) or "none"
    raise Spared(f"{path} is not below a directory in which things may be removed; there are: {allowed}")


def _enter(parent: int, name: str, mount: str, ref: str) -> int:
    """A descriptor of a directory on the way to, or of, the one to be removed."""
    try:
        handle = os.open(name, _OPEN, dir_fd=parent)
    except FileNotFoundError:
        raise Absent(f"{ref} is gone") from None
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            raise Spared(f"{ref}: {name} is a link or a file, which is never followed") from None
        raise Failed(f"{ref}: {name} cannot be opened: {error.strerror}", retryable=False) from error
    if _mount(handle) != mount:
        os.close(handle)
        raise Spared(f"{ref}: {name} is on another file system than the directory allowed")
    return handle


def _mount(handle: int) -> str:
    """Which mount a descriptor is on. The device would not tell one bound from the same file system."""
    text = Path(f"/proc/self/fdinfo/{handle}").read_text()
    return next(line for line in text.splitlines() if line.startswith("mnt_id:"))


class _Tree:
    """What is in the directory `top`."""

    def __init__(self, ref: str, top: int, mount: str, time_is_up: Callable[[], bool]) -> None:
        self._ref = ref
        self._top = top
        self._mount = mount
        self._time_is_up = time_is_up
        self._removed = 0
        self._moved = 0
        self._obstacle: str | None = None  # why the first thing that could not be removed is still there

    def empty(self) -> None:
        """Removes all of it, again while something new appears; raises `Failed` if something stays."""
        while True:
            before, self._obstacle = self._removed, None
            self._clear(self._top, depth=0)
            if not _names(self._top):
                return
            if self._removed == before:
                raise Failed(f"{self._ref}: {self._obstacle or 'it cannot be emptied'}", retryable=False)

    def _clear(self, here: int, depth: int) -> None:
        for name in _names(here):
            if self._time_is_up():
                raise Failed(
                    f"{self._ref}: not all of it could be removed in time; {self._removed} entries are gone",
                    retryable=True,
                )
            try:
                self._remove(here, name, depth)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _FILLED:  # else something new appeared, for the next round
                    self._obstacle = self._obstacle or f"{name} cannot be removed: {error.strerror}"

    def _remove(self, here: int, name: str, depth: int) -> None:
        try:
            handle = self._open(here, name)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            _permitted(here, lambda: os.unlink(name, dir_fd=here))
            self._removed += 1
            return
        try:
            if _mount(handle) != self._mount:
                raise OSError(errno.EXDEV, "something is mounted there")
            if depth < _DEEPEST:
                self._clear(handle, depth + 1)
        finally:
            os.close(handle)
        if depth < _DEEPEST:
            # Whatever is called so by now goes only if it is an empty directory.
            _permitted(here, lambda: os.rmdir(name, dir_fd=here))
        else:
            self._move_up(here, name)
        self._removed += 1

    def _open(self, here: int, name: str) -> int:
        """A descriptor of a directory, made readable if it is not: package caches often are read-only."""
        try:
            return os.open(name, _OPEN, dir_fd=here)
        except PermissionError:
            pass
        shut = os.open(name, _NO_LINK | os.O_PATH, dir_fd=here)
        try:
            if _mount(shut) == self._mount:
                os.chmod(f"/proc/self/fd/{shut}", 0o700)  # noqa: PTH101 - the descriptor's own, no name
            return os.open(name, _OPEN, dir_fd=here)
        finally:
            os.close(shut)

    def _move_up(self, here: int, name: str) -> None:
        """Puts a directory at the top, where the next round finds it, instead of holding ever more open."""
        self._moved += 1
        target = f".thunder-{os.getpid()}-{self._moved}"
        _permitted(here, lambda: os.rename(name, target, src_dir_fd=here, dst_dir_fd=self._top))


def _names(handle: int) -> list[str]:
    with os.scandir(handle) as entries:
        return [entry.name for entry in entries]


def _permitted(here: int, change: Callable[[], None]) -> None:
    """Does `change` in the directory `here`, which is made writable if need be."""
    try:
        change()
    except PermissionError:
        os.fchmod(here, 0o700)
        change()
