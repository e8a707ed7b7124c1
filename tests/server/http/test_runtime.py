"""The loop between the core, the handlers and the pollers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from thunder_server import runtime as runtime_module
from thunder_server.backend_spec import BackendSpec
from thunder_server.backends import poller as poller_module
from thunder_server.calls import Call, CallInterrupted, Cut
from thunder_server.core.config import SchedulerConfig
from thunder_server.core.decisions import Terminate
from thunder_server.core.events import CallArrived, CallEnd, ProgramOpened
from thunder_server.core.policies import CapSettings, make_policy
from thunder_server.core.scheduler import Scheduler
from thunder_server.runtime import Runtime

from .fake_engine import FakeEngine, Reply, Seen, engines
from .harness import serve


def runtime(**config: Any) -> Runtime:
    return Runtime(Scheduler(policy=make_policy("passthrough"), config=SchedulerConfig(**config)))


def arrival(made: Runtime, call_id: str = "c", program_id: str = "p") -> CallArrived:
    return CallArrived(at=made.now(), call_id=call_id, program_id=program_id)


async def test_deadlines_ring() -> None:
    async with FakeEngine() as engine, serve([engine], config=SchedulerConfig(auto_lease_s=0.05)) as served:
        await served.chat(program="p")
        await served.until(lambda: any(isinstance(decision, Terminate) for decision in served.decisions))
        assert served.view("p")["outcome"] == "lease_expired"


async def test_a_fault_in_the_core_costs_one_event(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as engine, serve([engine]) as served:
        handle = served.runtime.scheduler.handle

        def faulty(event: Any) -> Any:
            if isinstance(event, CallArrived) and event.program_id == "bad":
                raise ZeroDivisionError
            return handle(event)

        served.runtime.scheduler.handle = faulty  # type: ignore[method-assign]
        status, _, answer = await served.chat(program="bad")
        assert (status, answer["error"]["code"]) == (500, "internal_error")
        assert "ZeroDivisionError" in caplog.text
        assert "program_id='bad'" in caplog.text
        assert (await served.chat(program="good"))[0] == 200


async def test_a_fault_in_an_observer_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    made = runtime()
    seen: list[Any] = []

    def faulty(event: Any, decided: Any) -> None:
        raise ZeroDivisionError

    made.observe(faulty)
    forget = made.observe(lambda event, decided: seen.append(event))
    event = ProgramOpened(at=made.now(), program_id="p")
    async with made:
        assert made.post(event)
        forget()
        forget()
        made.post(event)
    assert seen == [event]
    assert "observer" in caplog.text


async def test_stopping_refuses_what_waits_and_lets_finish_what_runs() -> None:
    release = asyncio.Event()

    async def waits(seen: Seen, reply: Reply) -> None:
        await release.wait()
        await reply.json({"choices": []})

    async with (
        FakeEngine() as engine,
        serve([engine], policy="cap", policy_settings=CapSettings(programs=1)) as served,
    ):
        engine.answer = waits
        running = asyncio.create_task(served.chat(program="first"))
        await engine.arrived()
        waiting = asyncio.create_task(served.chat(program="second"))
        await served.until(lambda: served.runtime.scheduler.waiting_calls == 1)
        stopping = asyncio.create_task(served.runtime.stop(grace_s=5.0))
        status, headers, answer = await waiting
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "shutting_down", "1")
        assert (await served.chat(program="third"))[0] == 503
        release.set()
        assert (await running)[0] == 200
        async with asyncio.timeout(1.0):
            await stopping


async def test_stopping_cuts_what_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = hangs
        running = asyncio.create_task(served.chat(program="p"))
        seen = await engine.arrived()
        await served.runtime.stop(grace_s=0.02)
        assert (await running)[0] == 503
        assert "cutting 1 calls" in caplog.text
        async with asyncio.timeout(1.0):
            await seen.gone.wait()


async def test_calls_on_a_machine_that_hangs_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(seen: Seen, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with FakeEngine() as engine, serve([engine]) as served:
        engine.answer = hangs
        call = asyncio.create_task(served.chat(program="p"))
        await engine.arrived()
        # Only now, or a slow machine finds the backend dead before the call is there.
        monkeypatch.setattr(poller_module, "_ANSWER_S", 0.02)
        monkeypatch.setattr(poller_module, "_DEAD_AFTER_S", 0.04)
        monkeypatch.setattr(runtime_module, "_STALLED_AFTER_S", 0.1)
        engine.pages["/health"] = engine.pages["/metrics"] = hangs
        status, _, answer = await call
        assert (status, answer["error"]["code"]) == (504, "backend_timeout")
        assert served.view("p")["phase"] == "acting"


async def test_backends_come_and_go() -> None:
    async with engines(2) as (one, two), serve([one]) as served:
        spec = BackendSpec(url=two.url)
        added = served.runtime.add_backend(spec)
        assert served.runtime.add_backend(BackendSpec(url=two.url + "/v1/")) is added
        await served.until(lambda: two.id in served.runtime.healthy_backends)
        served.runtime.remove_backend(one.id)
        assert (await served.chat())[1]["X-Thunder-Backend"] == two.id
        assert set(served.runtime.backends) == set(served.runtime.scheduler.backends) == {two.id}
        for change in (served.runtime.remove_backend, served.runtime.drain_backend):
            with pytest.raises(KeyError):
                change(one.id)


async def test_unix_time() -> None:
    made = runtime()
    assert made.unix(made.now()) == pytest.approx(time.time(), abs=1.0)


# --- calls ----------------------------------------------------------------------------------------------


def call(reports: list[Any] | None = None) -> Call:
    arrived = CallArrived(at=0.0, call_id="c", program_id=None, anonymous_id="anon")
    return Call(arrived, lambda call, finished: None if reports is None else reports.append(finished))


async def interrupted_in(made: Call, waits: Callable[[], Any]) -> Cut:
    with pytest.raises(CallInterrupted) as interrupted:
        async with made.interruptible():
            await waits()
    assert isinstance(interrupted.value.by, Cut)
    return interrupted.value.by


async def test_an_interruption_ends_whatever_is_awaited() -> None:
    made = call()
    asyncio.get_running_loop().call_soon(made.interrupt, Cut.BACKEND_REMOVED)
    asyncio.get_running_loop().call_soon(made.interrupt, Cut.SERVER_STOPPING)
    assert await interrupted_in(made, asyncio.Event().wait) is Cut.BACKEND_REMOVED
    # One that came before is not lost.
    assert await interrupted_in(made, asyncio.Event().wait) is Cut.BACKEND_REMOVED
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_client_that_leaves_is_no_interruption() -> None:
    made = call()

    async def handler() -> None:
        async with made.interruptible():
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    made.interrupt(Cut.BACKEND_REMOVED)  # nobody is there any more


async def test_a_time_out_inside_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with call().interruptible():
            raise TimeoutError


async def test_a_call_ends_once() -> None:
    reports: list[Any] = []
    made = call(reports)
    assert (made.program_id, made.dispatch) == ("anon", None)
    made.finish(CallEnd.COMPLETED, 1.0)
    made.finish(CallEnd.CLIENT_GONE, 2.0)
    assert [None if report is None else report.end for report in reports] == [CallEnd.COMPLETED, None]


async def test_a_decision_is_waited_for_no_longer_than_told() -> None:
    assert await call().decided(0.001) is None
