"""A worker, and tasks for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from thunder_sdk.wire import Task
from thunder_server.reclaim.worker import Worker, make_worker


class Tasks:
    """Tasks for the programs of one test. They were opened when the test said so, else when it began."""

    def __init__(self) -> None:
        self.opened = time.time()

    def program_opens(self) -> None:
        self.opened = time.time()

    def __call__(self, do: str, kind: str = "", ref: str = "", **more: Any) -> Task:
        now = time.time()
        program = more.get("program_id", "p1")
        made: dict[str, Any] = {
            "task": "t", "do": do, "host": "h", "now": now, "timeout_s": 30.0, "attempt": 1, "generation": 1,
            "program_id": program, "kind": kind, "ref": ref,
            "claims": [{"program_id": program, "opened_at": self.opened, "ended_at": now}],
        }  # fmt: skip
        return cast("Task", made | more)


@pytest.fixture
def task() -> Tasks:
    return Tasks()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """With the engine in use here."""
    worker = make_worker()
    yield worker
    await worker.close()
