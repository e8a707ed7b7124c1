"""A real Docker engine for tests: an image made of this machine's busybox, and what was made with it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import uuid
from typing import Any

import docker

IMAGE = "thunder-test/busybox:2"


def make_image(api: docker.APIClient) -> None:
    """`IMAGE`, unless it is there: all that busybox is, from no registry. Told nothing, it sleeps."""
    try:
        api.inspect_image(IMAGE)
    except docker.errors.ImageNotFound:
        busybox = shutil.which("busybox")
        if busybox is None:
            raise FileNotFoundError("busybox is missing: apt-get install busybox-static") from None
        listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=60, check=True)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(busybox, "bin/busybox")
            for applet in set(listed.stdout.split()) - {"busybox"}:
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        repository, tag = IMAGE.split(":")
        api.import_image_from_data(
            archive.getvalue(), repository=repository, tag=tag, changes=['CMD ["sleep", "1000"]']
        )


class Engine:
    """What one test does with the engine. `clean` removes what is left of it."""

    def __init__(self, api: docker.APIClient) -> None:
        self.api = api
        self.mark = uuid.uuid4().hex[:12]  # in the names of everything that this test makes
        self._made: list[tuple[str, str]] = []

    def name(self, name: str) -> str:
        """A name that is this test's alone."""
        return f"{name}-{self.mark}"

    def container(self, *command: str, start: bool = True, **options: Any) -> str:
        """A container, running unless it is not to `start`; its id."""
        command = command or ("sleep", "1000")
        options["labels"] = {"thunder-test": self.mark, **options.get("labels", {})}
        made = self.api.create_container(IMAGE, list(command), **options)["Id"]
        self._made.append(("container", made))
        if start:
            self.api.start(made)
        return str(made)

    def volume(self, name: str, **options: Any) -> str:
        made = self.api.create_volume(self.name(name), **options)["Name"]
        self._made.append(("volume", made))
        return str(made)

    def network(self, name: str, **options: Any) -> str:
        made = self.api.create_network(self.name(name), **options)["Id"]
        self._made.append(("network", made))
        return str(made)

    def image(self, name: str, container: str, **options: Any) -> str:
        """An image of what `container` holds; its name."""
        tag = f"{self.name(name)}:1"
        self._made.append(("image", tag))
        self.api.commit(container, self.name(name), "1", **options)
        return tag

    def exists(self, kind: str, ref: str) -> bool:
        try:
            getattr(self.api, f"inspect_{kind}")(ref)
        except docker.errors.NotFound:
            return False
        return True

    def of_program(self, program_id: str) -> list[str]:
        """Ids of the containers that carry the label of this program."""
        found = self.api.containers(all=True, filters={"label": f"thunder.program={program_id}"})
        return [each["Id"] for each in found]

    def clean(self) -> None:
        for kind, ref in sorted(self._made, key=lambda made: "container network volume image".find(made[0])):
            if self.exists(kind, ref):
                options = {"force": True} if kind in ("container", "image") else {}
                getattr(self.api, f"remove_{kind}")(ref, **options)
