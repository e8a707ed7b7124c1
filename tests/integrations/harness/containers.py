"""What tests with containers need: an image with a shell, and what the engine knows of a container."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from typing import Any

IMAGE = "thunder-integrations:busybox"


def docker(*words: str, stdin: bytes | None = None) -> str:
    """One command to its end."""
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def missing() -> str | None:
    """Why there can be no containers here, if that is so."""
    if shutil.which("docker") is None:
        return "there is no docker command here"
    if shutil.which("busybox") is None:
        return "there is no busybox to make an image of: apt-get install busybox-static"
    answer = subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False)
    return None if answer.returncode == 0 else "no Docker engine answers here"


def image() -> str:
    """An image made of this machine's busybox, which must be a static one: a container of it sleeps."""
    if not docker("images", "--quiet", IMAGE):
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(str(shutil.which("busybox")), "bin/busybox")
            for applet in _applets():
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        settings = ("ENV PATH=/bin", 'ENTRYPOINT ["sh", "-c", "exec sleep 600"]')  # whatever it is told to do
        changes = [word for setting in settings for word in ("--change", setting)]
        docker("import", *changes, "-", IMAGE, stdin=layer.getvalue())
    return IMAGE


def _applets() -> list[str]:
    listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, timeout=60, check=True)
    return [name for name in listed.stdout.split() if name != "busybox"]


def inspected(container: str) -> dict[str, Any] | None:
    """What the engine knows of it, None if it is gone."""
    found = json.loads(
        subprocess.run(["docker", "inspect", container], capture_output=True, timeout=60, check=False).stdout
        or b"[]"
    )
    return found[0] if found else None
