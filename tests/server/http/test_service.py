"""Settings become a server."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from thunder_server.core.events import BackendAdded, BackendReported, CallArrived
from thunder_server.core.scheduler import Scheduler
from thunder_server.service import ListenError, make_scheduler, serving
from thunder_server.settings import Settings


def running(scheduler: Scheduler, calls: int) -> int:
    """How many of so many programs' first calls run at once on one backend of 1600 tokens."""
    scheduler.handle(BackendAdded(at=0.0, backend_id="h:1"))
    scheduler.handle(BackendReported(at=0.0, backend_id="h:1", healthy=True, capacity_tokens=1600))
    for index in range(calls):
        arrived = CallArrived(at=1.0, call_id=f"c{index}", program_id=f"p{index}", prompt_chars=4000)
        scheduler.handle(arrived)
    return calls - scheduler.waiting_calls


def test_policies_differ_as_told() -> None:
    assert running(make_scheduler(Settings(policy="passthrough")), 10) == 10
    assert running(make_scheduler(Settings(policy="cap", cap=3)), 10) == 3
    assert running(make_scheduler(Settings(policy="paper")), 10) == 1
    roomy = Settings(policy="paper", paper_lambda_max=2.0, paper_lambda_min=2.0)
    assert running(make_scheduler(roomy), 10) == 3


def test_times_reach_the_core() -> None:
    scheduler = make_scheduler(Settings(auto_lease=7.0, max_wait=11.0))
    scheduler.handle(CallArrived(at=0.0, call_id="c", program_id="p"))
    program = scheduler.program("p")
    assert program is not None
    assert program.lease_s == 7.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_it_listens_where_it_says(host: str) -> None:
    async with (
        serving(Settings(host=host, port=0)) as (url, _),
        aiohttp.ClientSession() as http,
        http.get(url + "/healthz") as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
async def test_a_host_it_cannot_have_is_said(host: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {host}:0 .*; .* choose with --host and --port"):
        async with serving(Settings(host=host, port=0)):
            pass


async def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serving(Settings(port=port)):
                pass


async def test_what_goes_wrong_inside_is_not_blamed_on_the_port() -> None:
    with pytest.raises(ConnectionResetError):
        async with serving(Settings(port=0)):
            raise ConnectionResetError
