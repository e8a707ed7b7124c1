"""``thunder reaper``: the same on another machine, whichever side is restarted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.docker_engine import Engine
from tests.e2e.holding import agent
from tests.e2e.processes import THUNDER, clean_environ, served, thunder
from tests.e2e.test_reclaim import NO_BACKEND, eventually, states

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@contextmanager
def reaping(url: str, host: str) -> Generator[subprocess.Popen[str]]:
    """``thunder reaper`` for a machine of this name; killed at the end if it still runs."""
    command = [*THUNDER, "reaper", "--server", url, "--host", host]
    with subprocess.Popen(
        command, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"thunder reaper: serves {host} for {url}\n"
            yield process
        finally:
            process.kill()


def test_it_does_what_is_to_be_done_on_its_machine(engine: Engine) -> None:
    box, program = engine.name("box"), f"p-{engine.mark}"
    with served(*NO_BACKEND) as server, agent(server.url, program, engine.mark) as holder:
        there, here = holder.ask("declared", box), holder.ask("declared")
        holder.ask("close")
        eventually(lambda: not engine.exists("container", here))
        assert engine.exists("container", there)  # nobody serves that machine yet
        with reaping(server.url, box) as reaper:
            eventually(lambda: not engine.exists("container", there))
            eventually(lambda: states(server, program)[there] == "reclaimed")
            reaper.send_signal(signal.SIGTERM)
            assert reaper.wait(30) == 0


def test_either_side_may_be_restarted(engine: Engine) -> None:
    box = engine.name("box")
    with served(*NO_BACKEND) as server:
        url = server.url
        with reaping(url, box) as first, agent(url, f"a-{engine.mark}", engine.mark) as holder:
            ref = holder.ask("declared", box)
            first.kill()
            first.wait(30)
            holder.ask("close")
            with reaping(url, box):
                eventually(lambda: not engine.exists("container", ref))
                server.stop(signal.SIGKILL)
                with (
                    served(*NO_BACKEND, "--port", url.rpartition(":")[2]) as again,
                    agent(again.url, f"b-{engine.mark}", engine.mark) as holder,
                ):
                    ref = holder.ask("declared", box)
                    holder.ask("close")
                    eventually(lambda: not engine.exists("container", ref))


def test_what_it_cannot_do_is_said_at_once(engine: Engine) -> None:
    with served(*NO_BACKEND, "--api-key", "right") as server:
        refused = thunder("reaper", "--server", server.url, "--api-key", "wrong")
        assert refused.returncode == 1
        assert "wants a key" in refused.stderr
    for words in (("--server", "nonsense"), ("--resource-root", "relative")):
        wrong = thunder("reaper", *words)
        assert wrong.returncode == 2
        assert words[0] in wrong.stderr
