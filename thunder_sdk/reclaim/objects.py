"""Removing what lives in a Docker engine: containers, networks, volumes and images."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from thunder_sdk import wire
from thunder_sdk.reclaim.endings import Absent, Ending, Failed, Spared
from thunder_sdk.reclaim.engine import Engine
from thunder_sdk.reclaim.ownership import Made, Owner, require_owned, unix
from thunder_sdk.wire import ResourceKind

_TELLS_VOLUME_TIMES: Final = (1, 42)  # an API older than that tells the time of a volume's last change
_COARSE_CLOCK: Final = 5  # CLOCK_REALTIME_COARSE, from which files get their times
_TICK: Final = time.clock_getres(_COARSE_CLOCK)  # s that they may be too early


_NAME: Final = re.compile(r"/?[A-Za-z0-9][A-Za-z0-9_.-]*")
_IMAGE: Final = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9][A-Za-z0-9._:@/-]*")


@dataclass(frozen=True, slots=True)
class Object:
    """What the engine says of one thing, as far as its removal is concerned."""

    what: str  # in words
    id: str
    labels: Mapping[str, str]
    made: Made | None
    details: Mapping[str, Any]


def look(engine: Engine, kind: str, ref: str) -> Object:
    """What `ref` stands for now; raises `Absent` if for nothing."""
    api, what = engine.api, f"{kind} {ref}"
    if not (_IMAGE if kind == ResourceKind.IMAGE else _NAME).fullmatch(ref):
        # It becomes part of a path of the engine's API, where it could lead elsewhere.
        raise Spared(f"{ref!r} is no name or id of a {kind}")
    with engine.answering(what):
        match kind:
            case ResourceKind.CONTAINER | ResourceKind.ENVIRONMENT:
                found = api.inspect_container(ref)
                return Object(what, found["Id"], _own_labels(engine, found), _at(found["Created"]), found)
            case ResourceKind.NETWORK:
                found = api.inspect_network(ref)
                return Object(what, found["Id"], found["Labels"] or {}, _at(found["Created"]), found)
            case ResourceKind.VOLUME:
                found = api.inspect_volume(ref)
                return Object(what, found["Name"], found["Labels"] or {}, _volume_made(engine, found), found)
            case ResourceKind.IMAGE:
                found = api.inspect_image(ref)
                return Object(what, found["Id"], _image_labels(found), _at(found["Created"]), found)
            case _:
                raise Spared(f"{kind!r} is no kind of resource that is known here")


def remove(
    engine: Engine, kind: str, ref: str, owners: Sequence[Owner], *, pin: str | None, brought: bool
) -> None:
    """Removes an object if it belongs to one of `owners`; raises an `Ending` unless it is gone then.

    `pin` is the id that `ref` stood for when it was declared, `brought` whether it was seen not to be there
    before. What was looked at goes by its id, as its name may be another's by then.
    """
    found = look(engine, kind, ref)
    if pin is not None and pin != found.id:
        raise Absent(f"what {found.what} stood for is gone; it is another one's name now")
    require_owned(found.what, found.labels, found.made, owners, engine.clock, brought=brought)
    match kind:
        case ResourceKind.NETWORK:
            _require_unused(found, engine.users(network=found.id), owners)
            with engine.answering(found.what):
                engine.api.remove_network(found.id)
        case ResourceKind.VOLUME:
            _require_unused(found, engine.users(volume=found.id), owners)
            with engine.answering(found.what):
                engine.api.remove_volume(found.id)
        case ResourceKind.IMAGE:
            _remove_image(engine, found, ref, owners)
        case _:
            remove_container(engine, found)


def remove_container(engine: Engine, found: Object) -> None:
    """Whoever's it is, with the volumes that have no name. A running one is killed."""
    try:
        with engine.answering(found.what):
            engine.api.remove_container(found.id, force=True, v=True)
    except Failed as failed:
        if "already in progress" not in str(failed):
            raise
        with suppress(Absent), engine.answering(found.what):  # somebody else's removal, as of --rm
            engine.api.wait(found.id, condition="removed")


def _remove_image(engine: Engine, found: Object, ref: str, owners: Sequence[Owner]) -> None:
    """Its name; with the last name the image, and the nameless layers of its build below it.

    One that was pulled has the time of its build: without a label or having been seen absent it counts as
    there before.
    """
    names = found.details["RepoTags"] or []
    if len(names) > 1 and not _is_id(ref, found):
        _untag(engine, found.what, ref)
        return
    _require_unused(found, engine.users(ancestor=found.id), owners)
    for name in (*names, found.id):
        _untag(engine, found.what, name)
    parent = found.details.get("Parent")
    while parent:
        # As `docker rmi` would, but not what was there before. Nobody asked for it, so nobody is told.
        try:
            layer = look(engine, ResourceKind.IMAGE, parent)
            require_owned(layer.what, layer.labels, layer.made, owners, engine.clock)
            if layer.details["RepoTags"]:
                return
            _untag(engine, layer.what, layer.id)
        except Ending:
            return
        parent = layer.details.get("Parent")


def _untag(engine: Engine, what: str, name: str) -> None:
    try:
        with suppress(Absent), engine.answering(what):  # the last name takes the image along
            engine.api.remove_image(name, noprune=True)
    except Failed as failed:
        if "dependent child images" not in str(failed):
            raise
        raise Spared(f"{what}: other images are built on it") from failed


def _require_unused(found: Object, users: Sequence[Mapping[str, Any]], owners: Sequence[Owner]) -> None:
    for user in users:
        name = (user["Names"] or [user["Id"]])[0].removeprefix("/")
        label = (user["Labels"] or {}).get(wire.PROGRAM_LABEL)
        if any(owner.program_id == label for owner in owners):
            raise Failed(f"{found.what} is still used by the program's container {name}", retryable=True)
        whose = "which is no program's" if label is None else f"of program {label}"
        raise Spared(f"{found.what} is used by container {name}, {whose}")


def _own_labels(engine: Engine, container: Mapping[str, Any]) -> Mapping[str, str]:
    """A container's labels, without ours if it comes from its image: whoever runs that image has it."""
    labels: dict[str, str] = dict(container["Config"]["Labels"] or {})
    if wire.PROGRAM_LABEL in labels:
        with suppress(Absent):
            with engine.answering("its image"):
                image = engine.api.inspect_image(container["Image"])
            if _image_labels(image).get(wire.PROGRAM_LABEL) == labels[wire.PROGRAM_LABEL]:
                del labels[wire.PROGRAM_LABEL]
    return labels


def _volume_made(engine: Engine, volume: Mapping[str, Any]) -> Made | None:
    content = Path(volume["Mountpoint"])
    if engine.local and content.name == "_data":
        with suppress(OSError):  # another user's, or another machine's
            # The directory around the content stays as it was made.
            status = content.parent.stat()
            made = min(status.st_mtime, status.st_ctime)
            return Made(made + _TICK, made)
    if engine.api_version < _TELLS_VOLUME_TIMES or volume["Driver"] != "local":
        return None
    made = unix(volume["CreatedAt"])
    return Made(made, made + 1)  # it is cut to whole seconds


def _at(stamp: str) -> Made:
    made = unix(stamp)
    return Made(made, made)


def _image_labels(image: Mapping[str, Any]) -> Mapping[str, str]:
    return (image.get("Config") or {}).get("Labels") or {}


def _is_id(ref: str, image: Object) -> bool:
    return len(ref) >= 12 and image.id.removeprefix("sha256:").startswith(ref.removeprefix("sha256:"))
