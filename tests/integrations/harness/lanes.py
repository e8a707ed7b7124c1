"""Scripts in the environments that hold the frameworks: ``.venv-lanes/{a,b,…}``, from ``make lanes``.

Every script is a process of its own (frameworks keep globals), with a private HOME and an environment that
names our server and nothing of this machine's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LANES = ROOT / ".venv-lanes"
PYTHONS = {"a": "3.11", "b": "3.12", "proxy": "3.11", "crewai": "3.11"}

QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""What keeps the frameworks from asking the world."""
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "DOCKER_HOST", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Run:
    """A script that has ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """What it printed last, which is JSON."""
        return json.loads(self.out.rstrip().rsplit("\n", 1)[-1])

    @property
    def warnings(self) -> list[str]:
        """The lines in which the SDK warned, however the framework has set logging up."""
        return [line for line in (self.out + self.err).splitlines() if "thunder: " in line]


@dataclass(frozen=True)
class Lane:
    """One of the environments, for one test."""

    name: str
    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return LANES / self.name / "bin" / "python"

    @property
    def missing(self) -> str | None:
        """Why nothing can run here, if that is so."""
        if (LANES / self.name / ".ready").exists():
            return None
        return f"lane {self.name} (Python {PYTHONS[self.name]}) is not built: make lanes"

    def require(self) -> Lane:
        """Itself, or the test is skipped with the reason; where CI runs, it fails."""
        if self.missing and os.environ.get("CI"):
            pytest.fail(self.missing)
        if self.missing:
            pytest.skip(self.missing)
        return self

    def env(self, **extra: str) -> dict[str, str]:
        """The environment of its processes."""
        kept = {name: value for name, value in os.environ.items() if name in _KEPT}
        home = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / ".cache")}
        return {**kept, **QUIET, **home, **self.environ, **extra}

    def start(self, script: Path | str, *words: str, **environ: str) -> subprocess.Popen[str]:
        """A script, or ``-m module``, in a process group of its own; its end is the caller's business."""
        command = [str(self.python), *(script.split() if isinstance(script, str) else [str(script)]), *words]
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=self.env(**environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, script: Path | str, *words: str, timeout: float = 100, ok: bool = True, **environ: str
    ) -> Run:
        """A script to its end; that it exits with 0 is expected unless ``ok=False``."""
        process = self.start(script, *words, **environ)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"still running after {timeout:g} s\n{out[-3000:]}\n{err[-6000:]}") from None
        assert not ok or process.returncode == 0, f"exit {process.returncode}\n{out[-3000:]}\n{err[-6000:]}"
        return Run(process.returncode, out, err)
