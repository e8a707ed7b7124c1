"""What a program's sandbox should look like."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thunder_sdk._config import strings
from thunder_sdk._exceptions import ThunderConfigError


def engine_host() -> str:
    """What the Docker engine in use here is called as a host of resources."""
    return os.environ.get("DOCKER_HOST") or socket.gethostname()


@dataclass(frozen=True)
class DockerEnvironment:
    """A container that the server prepares before a program needs it.

    Args:
        image: reference of the image, like ``"python:3.12-slim"``.
        command: what the container runs, as an argument vector; None for the image's own.
        setup: shell commands to run inside, in order, before it counts as ready.
        env: environment variables.
        mounts: ``"source:target[:ro]"`` entries.
        workdir: working directory inside.
        network: name of a Docker network.
        limits: resource limits, like ``{"cpus": 2, "memory": "4g"}``.

    Raises:
        ThunderConfigError: a field has the wrong shape.

    >>> DockerEnvironment("python:3.12-slim", setup=["pip install pytest"]).payload()
    {'kind': 'docker', 'image': 'python:3.12-slim', 'setup': ['pip install pytest']}
    """

    image: str
    command: Sequence[str] | None = None
    setup: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[str] = ()
    workdir: str | None = None
    network: str | None = None
    limits: Mapping[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or not self.image.strip():
            raise ThunderConfigError(f"image must name a Docker image, not {self.image!r}")
        for name in ("command", "setup", "mounts"):
            value = getattr(self, name)
            if value is None and name == "command":
                continue
            object.__setattr__(self, name, strings(name, value))
        for name in ("workdir", "network"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ThunderConfigError(f"{name} must be a string, not {value!r}")
        for name, kinds in (("env", str), ("limits", (int, float, str))):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(
                isinstance(key, str) and isinstance(entry, kinds) for key, entry in value.items()
            ):
                raise ThunderConfigError(f"{name} maps names to strings or numbers, not {value!r}")
            object.__setattr__(self, name, dict(value))

    def payload(self) -> dict[str, object]:
        """As the server wants it: JSON, what is not set left out."""
        fields: dict[str, object] = {
            "command": None if self.command is None else list(self.command),
            "setup": list(self.setup),
            "env": dict(self.env),
            "mounts": list(self.mounts),
            "workdir": self.workdir,
            "network": self.network,
            "limits": dict(self.limits),
        }
        return {"kind": "docker", "image": self.image} | {
            key: value for key, value in fields.items() if value
        }
