"""What is there: which objects carry a program's label, whose a declared one is, how much disk one takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from thunder_sdk import wire
from thunder_sdk.reclaim import objects
from thunder_sdk.reclaim.endings import Absent
from thunder_sdk.reclaim.engine import Engine
from thunder_sdk.reclaim.ownership import Clock, unix
from thunder_sdk.wire import FoundObject, ResourceKind

_BLOCK: Final = 512  # bytes, of what a file system says a file takes


def survey(engine: Engine, server: Clock) -> list[FoundObject]:
    """All that carries a program's label of its own. Times are those of the `server`'s clock.

    What a container got from its image does not count, and neither do images with a name: both get the label
    by being made from a labelled container, and whoever gave them a name may want them.
    """
    clock = engine.clock()
    with engine.answering("the list of objects with a label"):
        return [
            FoundObject(
                kind=kind,
                ref=ref,
                name=name,
                program_id=program_id,
                created_at=server.there(clock.here(made)),
            )
            for kind, ref, name, program_id, made in _labelled(engine.api)
        ]


def _labelled(api: Any) -> Iterator[tuple[ResourceKind, str, str, str, float]]:
    """Kind, id, name, label and the latest time at which it can have been made.

    The engine lists whole seconds. What seems older than a generation of its program would count as left by
    the one before, so they are taken at their end.
    """
    label = wire.PROGRAM_LABEL
    images = {each["Id"]: each["Labels"][label] for each in api.images(filters={"label": label}, all=True)}
    for each in api.containers(all=True, filters={"label": label}):
        program_id = each["Labels"][label]
        if images.get(each["ImageID"]) != program_id:
            name = (each["Names"] or [each["Id"]])[0].removeprefix("/")
            yield ResourceKind.CONTAINER, each["Id"], name, program_id, each["Created"] + 1
    for each in api.networks(filters={"label": label}):
        yield ResourceKind.NETWORK, each["Id"], each["Name"], each["Labels"][label], unix(each["Created"])
    for each in api.volumes(filters={"label": label})["Volumes"] or ():
        made = unix(each["CreatedAt"]) + 1
        yield ResourceKind.VOLUME, each["Name"], each["Name"], each["Labels"][label], made
    for each in api.images(filters={"label": label, "dangling": True}):
        yield ResourceKind.IMAGE, each["Id"], each["Id"], each["Labels"][label], each["Created"] + 1


def observe(engine: Engine, task: wire.Task, server: Clock) -> wire.TaskResult:
    """What a name means now, and whether that came after its program had opened.

    Told right after a declaration, it proves what cannot be proven later: that an image was not there before
    it was pulled, or that a name has passed to another object meanwhile.
    """
    try:
        found = objects.look(engine, task["kind"], task["ref"])
    except Absent as absent:
        return wire.TaskResult(task=task["task"], end=wire.WorkEnd.ABSENT, error=str(absent), brought=True)
    opened = [claim["opened_at"] for claim in task["claims"]]
    brought = found.made is not None and found.made.earliest >= engine.clock().there(server.here(min(opened)))
    return wire.TaskResult(task=task["task"], end=wire.WorkEnd.DONE, pin=found.id, brought=brought)


def measure(engine: Engine, kind: str, ref: str) -> int | None:
    """Bytes of disk that an object of the engine takes; None if it does not say."""
    api = engine.api
    size: int | None = None
    with engine.answering(f"{kind} {ref}"):
        match kind:
            case ResourceKind.CONTAINER | ResourceKind.ENVIRONMENT:
                container = api.inspect_container(ref)["Id"]
                found = api.containers(all=True, size=True, filters={"id": container})
                size = sum(each.get("SizeRw", 0) for each in found)
            case ResourceKind.VOLUME:
                volumes = api.df()["Volumes"] or ()
                size = sum(each["UsageData"]["Size"] for each in volumes if each["Name"] == ref)
            case ResourceKind.IMAGE:
                size = api.inspect_image(ref)["Size"]
    return size if size is not None and size >= 0 else None  # the engine says -1 where it does not know


def measure_directory(path: str) -> int:
    """Bytes of disk that a directory takes with all in it. Links are not followed."""
    return sum(_sizes(path))


def _sizes(path: str) -> Iterator[int]:
    waiting = [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:  # gone, or not ours to read
            continue
