"""Containers as the Docker engine knows them."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def inspected(container: str) -> dict[str, Any] | None:
    """What the engine says of it, None if it is gone."""
    answer = subprocess.run(["docker", "inspect", container], capture_output=True, timeout=60, check=False)
    found = json.loads(answer.stdout or b"[]")
    return found[0] if found else None
