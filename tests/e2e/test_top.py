"""``thunder top`` on a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess

import pytest

from .processes import THUNDER, clean_environ, served

pytestmark = pytest.mark.slow


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What comes from the terminal, up to ``wanted``."""
    shown = b""
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, shown
        shown += os.read(terminal, 65536)
    return shown


def test_it_refreshes_until_interrupted_and_gives_the_screen_back() -> None:
    with served("--backend", "http://127.0.0.1:9") as server:
        terminal, its_side = pty.openpty()
        environ = clean_environ(TERM="xterm-256color", THUNDER_BASE_URL=server.url)
        words = [*THUNDER, "top", "--interval", "0.1"]
        with subprocess.Popen(
            words, env=environ, stdin=its_side, stdout=its_side, stderr=its_side, start_new_session=True
        ) as top:
            try:
                for _ in range(2):
                    assert b"127.0.0.1:9" in read_until(terminal, b"0 programs: 0 active, 0 paused")
                server.process.kill()
                read_until(terminal, b"nothing answers at")
                top.send_signal(signal.SIGINT)
                read_until(terminal, b"\x1b[?1049l")
                assert top.wait(20) == 0
            finally:
                top.kill()
                os.close(terminal)
                os.close(its_side)
