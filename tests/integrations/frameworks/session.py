"""One process with a framework in it, which plays one scenario after the other: importing takes longest.

Whatever a scenario leaves behind in the process would show in the ones after it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from ..harness.lanes import Lane


class Session:
    """``session("run")`` plays a scenario of the script and returns what it has to say."""

    def __init__(self, lane: Lane, script: Path, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(lane.python), str(script)],
                cwd=lane.home,
                env=lane.env(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._answers: Queue[dict[str, Any]] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __call__(self, scenario: str, timeout: float = 90.0, **environ: str) -> dict[str, Any]:
        """``answer``, the programs that the tools have ``seen``, the one current ``after``, ``warnings``."""
        warned = len(self.warnings)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([scenario, environ]) + "\n")
        self._process.stdin.flush()
        try:
            result = self._answers.get(timeout=timeout)
        except Empty:
            raise AssertionError(f"no answer within {timeout:g} s\n{self._log.read_text()[-6000:]}") from None
        assert "error" not in result, f"{result.get('error')}\n{self._log.read_text()[-3000:]}"
        return {**result, "warnings": self.warnings[warned:]}

    @property
    def warnings(self) -> list[str]:
        """The lines in which the SDK has warned."""
        return [line for line in self._log.read_text().splitlines() if "thunder: " in line]

    def close(self) -> None:
        """Its end, by the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(MARK):
                    self._answers.put(json.loads(line.removeprefix(MARK)))
        self._answers.put({"error": "the process has ended"})


MARK = "@answer "
"""What begins a line of the script that is an answer: frameworks print as well."""
