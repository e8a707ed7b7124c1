"""Removing what lives in a Docker engine: containers, networks, volumes and images."""

from __future__ import annotations

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

_TELLS_VOLUME_TIMES: Final = (1, 42)  # an API older than that tells the time of a volume's last change
_COARSE_CLOCK: Final = 5  # CLOCK_REALTIME_COARSE, from which files get their times
_TICK: Final = time.clock_getres(_COARSE_CLOCK)


@dataclass(frozen=True, slots=True)
class Removal:
    """One object to be removed from `engine`, if it belongs to one of `owners`.

    Every method raises an `Ending` unless the object is gone when it returns. What was looked at goes by its
    id, as its name may be another's by then.
    """

    engine: Engine
    ref: str
    owners: Sequence[Owner]

    def container(self) -> None:
        """With the volumes that have no name. A running one is killed."""
        api, what = self.engine.api, f"container {self.ref}"
        with self.engine.answering(what):
            found = api.inspect_container(self.ref)
        self._require_owned(what, self._own_labels(found), _at(found["Created"]))
        try:
            with self.engine.answering(what):
                api.remove_container(found["Id"], force=True, v=True)
        except Failed as failed:
            if "already in progress" not in str(failed):
                raise
            with suppress(Absent), self.engine.answering(what):  # somebody else's removal, as of --rm
                api.wait(found["Id"], condition="removed")

    def network(self) -> None:
        """One that no container is connected to."""
        api, what = self.engine.api, f"network {self.ref}"
        with self.engine.answering(what):
            found = api.inspect_network(self.ref)
        self._require_owned(what, found["Labels"], _at(found["Created"]))
        self._require_unused(what, self.engine.users(network=found["Id"]))
        with self.engine.answering(what):
            api.remove_network(found["Id"])

    def volume(self) -> None:
        """One that no container mounts."""
        api, what = self.engine.api, f"volume {self.ref}"
        with self.engine.answering(what):
            found = api.inspect_volume(self.ref)
        self._require_owned(what, found["Labels"], self._volume_made(found))
        self._require_unused(what, self.engine.users(volume=found["Name"]))
        with self.engine.answering(what):
            api.remove_volume(found["Name"])

    def image(self) -> None:
        """Its name; with the last name the image, and the nameless layers of its build below it.

        One that was pulled has the time of its build, so without a label it counts as there before.
        """
        api, what = self.engine.api, f"image {self.ref}"
        with self.engine.answering(what):
            found = api.inspect_image(self.ref)
        self._require_owned(what, _image_labels(found), _at(found["Created"]))
        names = found["RepoTags"] or []
        if len(names) > 1 and not _is_id(self.ref, found):
            self._remove_image(what, self.ref)
            return
        self._require_unused(what, self.engine.users(ancestor=found["Id"]))
        for name in (*names, found["Id"]):
            self._remove_image(what, name)
        self._remove_layers(found.get("Parent"))

    def _remove_image(self, what: str, name: str) -> None:
        try:
            with suppress(Absent), self.engine.answering(what):  # the last name takes the image along
                self.engine.api.remove_image(name, noprune=True)
        except Failed as failed:
            if "dependent child images" not in str(failed):
                raise
            raise Spared(f"{what}: other images are built on it") from failed

    def _remove_layers(self, parent: str | None) -> None:
        """As ``docker rmi`` would, but not what was there before. Nobody asked for it, so nobody is told."""
        while parent:
            what = f"image {parent}"
            with suppress(Ending):
                with self.engine.answering(what):
                    found = self.engine.api.inspect_image(parent)
                self._require_owned(what, _image_labels(found), _at(found["Created"]))
                if not found["RepoTags"]:
                    self._remove_image(what, found["Id"])
                    parent = found.get("Parent")
                    continue
            return

    # --- whose it is -------------------------------------------------------------------------------------

    def _require_owned(self, what: str, labels: Mapping[str, str] | None, made: Made | None) -> None:
        require_owned(what, labels, made, self.owners, self.engine.clock)

    def _own_labels(self, container: Mapping[str, Any]) -> Mapping[str, str]:
        """A container's labels, without ours if it comes from its image: whoever runs that image has it."""
        labels: dict[str, str] = dict(container["Config"]["Labels"] or {})
        if wire.PROGRAM_LABEL in labels:
            with suppress(Absent):
                with self.engine.answering("its image"):
                    image = self.engine.api.inspect_image(container["Image"])
                if _image_labels(image).get(wire.PROGRAM_LABEL) == labels[wire.PROGRAM_LABEL]:
                    del labels[wire.PROGRAM_LABEL]
        return labels

    def _volume_made(self, volume: Mapping[str, Any]) -> Made | None:
        content = Path(volume["Mountpoint"])
        if self.engine.local and content.name == "_data":
            with suppress(OSError):  # another user's, or another machine's
                # The directory around the content stays as it was made.
                status = content.parent.stat()
                made = min(status.st_mtime, status.st_ctime) + _TICK
                return Made(made, made)
        if self.engine.api_version < _TELLS_VOLUME_TIMES or volume["Driver"] != "local":
            return None
        made = unix(volume["CreatedAt"])
        return Made(made, made + 1)  # it is cut to whole seconds

    def _require_unused(self, what: str, users: Sequence[Mapping[str, Any]]) -> None:
        for user in users:
            name = (user["Names"] or [user["Id"]])[0].removeprefix("/")
            label = (user["Labels"] or {}).get(wire.PROGRAM_LABEL)
            if any(owner.program_id == label for owner in self.owners):
                raise Failed(f"{what} is still used by the program's container {name}", retryable=True)
            whose = "which is no program's" if label is None else f"of program {label}"
            raise Spared(f"{what} is used by container {name}, {whose}")


def _at(stamp: str) -> Made:
    made = unix(stamp)
    return Made(made, made)


def _image_labels(image: Mapping[str, Any]) -> Mapping[str, str]:
    return (image.get("Config") or {}).get("Labels") or {}


def _is_id(ref: str, image: Mapping[str, Any]) -> bool:
    return len(ref) >= 12 and image["Id"].removeprefix("sha256:").startswith(ref.removeprefix("sha256:"))
