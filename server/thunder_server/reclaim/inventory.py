"""What is there: which objects carry a program's label, whose a declared one is, how much disk one takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from thunder_sdk import wire
from thunder_sdk.reclaim.endings import Absent
from thunder_sdk.reclaim.engine import Engine
from thunder_sdk.reclaim.ownership import Clock, unix
from thunder_sdk.wire import FoundObject, ResourceKind

_BLOCK: Final = 512  # bytes, of what a file system says a file takes
_LABELLED: Final = {"label": wire.PROGRAM_LABEL}


def survey(engine: Engine, server: Clock) -> list[FoundObject]:
    """All that carries a program's label of its own. Times are those of the `server`'s clock.

    What a container got from its image does not count, and neither do images with a name: both get the label
    by being made from a labelled container, and whoever gave them a name may want them.
    """
    api = engine.api
    clock = engine.clock()

    def found(kind: ResourceKind, ref: str, name: str, labels: Mapping[str, str], made: float) -> FoundObject:
        return FoundObject(
            kind=kind,
            ref=ref,
            name=name,
            program_id=labels[wire.PROGRAM_LABEL],
            created_at=server.there(clock.here(made)),
        )

    objects = []
    with engine.answering("the list of objects with a label"):
        inherited = {
            image["Id"]: (image["Labels"] or {}).get(wire.PROGRAM_LABEL)
            for image in api.images(filters=_LABELLED, all=True)
        }
        for each in api.containers(all=True, filters=_LABELLED):
            if inherited.get(each["ImageID"]) != each["Labels"][wire.PROGRAM_LABEL]:
                name = (each["Names"] or [each["Id"]])[0].removeprefix("/")
                objects.append(
                    found(ResourceKind.CONTAINER, each["Id"], name, each["Labels"], each["Created"])
                )
        for each in api.networks(filters=_LABELLED):
            objects.append(
                found(ResourceKind.NETWORK, each["Id"], each["Name"], each["Labels"], unix(each["Created"]))
            )
        for each in api.volumes(filters=_LABELLED)["Volumes"] or []:
            objects.append(
                found(
                    ResourceKind.VOLUME, each["Name"], each["Name"], each["Labels"], unix(each["CreatedAt"])
                )
            )
        for each in api.images(filters=_LABELLED | {"dangling": True}):
            objects.append(
                found(ResourceKind.IMAGE, each["Id"], each["Id"], each["Labels"], each["Created"])
            )
    return objects


def observe(engine: Engine, task: wire.Task, server: Clock) -> wire.TaskResult:
    """What a name means now, and whether that came after its program had opened.

    Told right after a declaration, it proves what cannot be proven later: that an image was not there before
    it was pulled, or that a name has passed to another object meanwhile.
    """
    kind, ref = task["kind"], task["ref"]
    inspect = {
        ResourceKind.CONTAINER: engine.api.inspect_container,
        ResourceKind.ENVIRONMENT: engine.api.inspect_container,
        ResourceKind.NETWORK: engine.api.inspect_network,
        ResourceKind.VOLUME: engine.api.inspect_volume,
        ResourceKind.IMAGE: engine.api.inspect_image,
    }[ResourceKind(kind)]
    result = wire.TaskResult(task=task["task"], end=wire.WorkEnd.DONE)
    try:
        with engine.answering(f"{kind} {ref}"):
            found = inspect(ref)
    except Absent:
        return wire.TaskResult(task=task["task"], end=wire.WorkEnd.ABSENT, brought=True)
    return result


def measure(engine: Engine, kind: str, ref: str) -> int | None:
    """Bytes of disk that an object of the engine takes; None if it does not say."""
    api = engine.api
    with engine.answering(f"{kind} {ref}"):
        match kind:
            case ResourceKind.CONTAINER | ResourceKind.ENVIRONMENT:
                container = api.inspect_container(ref)["Id"]
                sizes = api.containers(all=True, size=True, filters={"id": container})
                return sum(each.get("SizeRw", 0) for each in sizes)
            case ResourceKind.VOLUME:
                for volume in api.df()["Volumes"] or []:
                    if volume["Name"] == ref:
                        size: int = volume["UsageData"]["Size"]
                        return None if size < 0 else size
                raise Absent(f"volume {ref} is gone")
            case ResourceKind.IMAGE:
                image_size: int = api.inspect_image(ref)["Size"]
                return image_size
            case _:
                return None


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
