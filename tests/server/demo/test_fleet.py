"""Processes are awaited no longer than they live, quoted when they fail, and gone in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from thunder_server.demo.fleet import DemoError, Fleet, Process, free_ports, read_lines

ECHO = "thunder_server.demo.agents"  # says "ready", then waits for a line


def exists(process: Process) -> bool:
    return Path(f"/proc/{process.handle.pid}").exists()


async def test_a_process_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        process = await fleet.module("the engine", "no_such_module")
        with pytest.raises(
            DemoError, match=r"the engine ended with exit code 1:\n.*No module named no_such_module"
        ):
            await fleet.wait_ready(process, "http://127.0.0.1:1/health")


async def test_nothing_is_awaited_when_a_process_has_died(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.module("the server", "no_such_module")
        with pytest.raises(DemoError, match="the server ended"):
            await fleet.while_alive(asyncio.sleep(3600))


async def test_work_ends_while_processes_go_on(tmp_path: Path) -> None:
    done = []

    async def work() -> None:
        done.append(True)

    async with Fleet(tmp_path) as fleet:
        process = await fleet.module("agents", ECHO)
        await fleet.while_alive(work())
        assert done
        assert process.alive
    assert not exists(process)


async def test_failing_work_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        raise KeyError("what")

    async with Fleet(tmp_path) as fleet:
        with pytest.raises(KeyError):
            await fleet.while_alive(work())


async def test_all_are_ended_whatever_happens(tmp_path: Path) -> None:
    processes = []

    async def fail() -> None:
        async with Fleet(tmp_path) as fleet:
            processes.extend([await fleet.module("agents", ECHO) for _ in range(2)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert not [process for process in processes if exists(process)]


async def test_lines_come_from_all_until_they_end(tmp_path: Path) -> None:
    lines: list[bytes] = []
    async with Fleet(tmp_path) as fleet:
        processes = [await fleet.module("agents", ECHO) for _ in range(2)]
        for process in processes:
            assert process.handle.stdin is not None
            process.handle.stdin.close()
        await fleet.while_alive(read_lines(processes, lines.append))
    assert lines == [b"ready\n", b"ready\n"]


async def test_our_variables_do_not_configure_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_POLICY", "nonsense")
    (port,) = free_ports(1)
    async with Fleet(tmp_path) as fleet:
        server = await fleet.thunder(
            "server", "serve", "--backend", "http://127.0.0.1:1", "--port", str(port)
        )
        await fleet.wait_ready(server, f"http://127.0.0.1:{port}/healthz")


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
