"""The command line as processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

THUNDER = (sys.executable, "-c", "from thunder_server.cli import main; main()")


def clean_environ(**extra: str) -> dict[str, str]:
    """This process's environment without what would configure a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THUNDER_")}
    return kept | {"COLUMNS": "200"} | extra


def thunder(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """One run of a command to its end."""
    return subprocess.run(
        [*THUNDER, *words], env=clean_environ(**environ), capture_output=True, text=True, timeout=60
    )


class Server:
    """A ``thunder serve`` that has said it is ready, and where."""

    def __init__(self, process: subprocess.Popen[str], greeting: str) -> None:
        self.process = process
        self.greeting = greeting
        found = re.search(r"http://\S+", greeting)
        assert found, greeting
        self.url = found[0]

    def stop(self, number: int) -> int:
        """Its exit code after this signal."""
        self.process.send_signal(number)
        return self.process.wait(40)


@contextmanager
def emulated(port: int, *words: str) -> Generator[subprocess.Popen[str]]:
    """``thunder emulate`` on this port; killed at the end if it still runs."""
    command = [*THUNDER, "emulate", "--port", str(port), *words]
    with subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready at" in process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextmanager
def served(*words: str, **environ: str) -> Generator[Server]:
    """``thunder serve`` on a free port; killed at the end if it still runs."""
    with subprocess.Popen(
        [*THUNDER, "serve", "--port", "0", *words],
        env=clean_environ(**environ),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline())
        finally:
            process.kill()
