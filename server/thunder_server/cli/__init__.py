"""The ``thunder`` command. Needs the ``server`` extra; says so where it is missing."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point of the ``thunder`` script: exit 0, 1 failed, 2 wrong usage."""
    try:
        from thunder_server.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] in ("thunder_server", "thunder_sdk"):
            raise
        sys.exit(
            f"thunder: the command line needs the package {missing.name!r}, which the server extra brings: "
            "pip install 'thunder-sdk[server]'"
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter still gets the others
    app()
