"""Which program is current where: tasks, threads, pools, generators, pickles."""

import asyncio
import contextvars
import gc
import pickle
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

import thunder_sdk as thunder

pytestmark = pytest.mark.usefixtures("sdk")


async def test_tasks_inherit_and_do_not_disturb_each_other():
    async def child(n):
        async with thunder.program(f"child {n}") as mine:
            await asyncio.sleep(0)
            assert thunder.current_program() is mine
        assert thunder.current_program() is parent
        return mine.parent_id

    async with thunder.program() as parent:
        parents = await asyncio.gather(*(child(n) for n in range(3)))
        assert thunder.current_program() is parent
    assert parents == [parent.id] * 3


async def test_a_task_that_outlives_the_program_is_in_none():
    let_go = asyncio.Event()

    async def late():
        await let_go.wait()
        return thunder.current_program()

    async with thunder.program() as outer:
        async with thunder.program():
            task = asyncio.create_task(late())
        let_go.set()
        assert await task is outer


async def test_a_task_keeps_what_was_activated_around_it():
    let_go = asyncio.Event()

    async def late():
        await let_go.wait()
        return thunder.current_program()

    p = thunder.program()
    with p.activate():
        task = asyncio.create_task(late())
    let_go.set()
    assert await task is p


async def test_closing_in_another_task(server):
    p = await thunder.program().__aenter__()
    await asyncio.create_task(p.__aexit__(None, None, None))
    assert p.outcome == "success"
    assert thunder.current_program() is None


def test_raw_threads_are_in_no_program():
    found = queue.SimpleQueue()
    with thunder.program():
        thread = threading.Thread(target=lambda: found.put(thunder.current_program()))
        thread.start()
        thread.join()
    assert found.get() is None


def test_activate_carries_it_into_a_thread():
    found = queue.SimpleQueue()

    def work(p):
        with p.activate():
            found.put(thunder.current_program())

    with thunder.program() as p:
        thread = threading.Thread(target=work, args=(p,))
        thread.start()
        thread.join()
    assert found.get() is p


def test_the_executor_carries_it():
    with thunder.program() as p:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(thunder.current_program).result() is None
        with thunder.ContextThreadPoolExecutor(2) as pool:
            assert pool.submit(thunder.current_program).result() is p
            assert list(pool.map(lambda _: thunder.current_program(), range(3))) == [p] * 3
            with pytest.raises(ZeroDivisionError):
                pool.submit(lambda: 1 // 0).result()


async def test_to_thread_carries_it():
    async with thunder.program() as p:
        assert await asyncio.to_thread(thunder.current_program) is p


# --- decorators --------------------------------------------------------------------------------------------


def test_every_call_is_a_program_of_its_own(server):
    seen = []

    @thunder.program
    def bare(x: int, *, y: str = "a") -> str:
        """Doc."""
        seen.append(thunder.current_program())
        return y * x

    @thunder.program("named", group="g")
    def named():
        seen.append(thunder.current_program())

    @thunder.program()
    def called():
        seen.append(thunder.current_program())

    assert bare(2, y="b") == "bb"
    named()
    named()
    called()
    assert [(p.name, p.group, p.outcome) for p in seen] == [
        ("bare", None, "success"), ("named", "g", "success"), ("named", "g", "success"),
        ("called", None, "success"),
    ]  # fmt: skip
    assert len({p.id for p in seen}) == 4
    assert (bare.__name__, bare.__doc__) == ("bare", "Doc.")
    import inspect

    assert str(inspect.signature(bare)) == "(x: int, *, y: str = 'a') -> str"
    assert set(server.programs) == {p.id for p in seen}


async def test_coroutine_functions(server):
    @thunder.program
    async def solve(n):
        await asyncio.sleep(0)
        return n, thunder.current_program()

    assert asyncio.iscoroutinefunction(solve)
    results = await asyncio.gather(solve(1), solve(2))
    assert [n for n, _ in results] == [1, 2]
    assert len({p.id for _, p in results}) == 2
    assert {server.programs[p.id].outcome for _, p in results} == {"success"}


def test_methods(server):
    class Agent:
        @thunder.program
        def run(self):
            return self, thunder.current_program().name

    agent = Agent()
    assert agent.run() == (agent, "run")


def test_what_cannot_be_decorated():
    with pytest.raises(thunder.ThunderConfigError, match="fixed"):
        thunder.program(program_id="fixed")(lambda: 0)
    with pytest.raises(thunder.ThunderConfigError, match="only functions"):
        thunder.program("x")(7)
    with pytest.raises(thunder.ThunderConfigError, match="only functions"):
        thunder.program(type("Agent", (), {}))
    with thunder.program() as p:
        for used in (p, thunder.attach(p.serialize())):
            with pytest.raises(thunder.ThunderStateError, match="not in use"):
                used(lambda: 0)
    with pytest.raises(thunder.ThunderStateError):
        p(lambda: 0)


tenant = contextvars.ContextVar("tenant", default=None)


@thunder.program
def counting(limit):
    for n in range(limit):
        try:
            with thunder.program("inner"):
                got = yield (n, thunder.current_program())
                tenant.set(got)
        except KeyError as error:
            yield ("caught", error.args[0])
    return "done"


def test_a_generator_is_in_its_program_only_while_its_body_runs(server):
    with thunder.program("consumer") as consumer:
        steps = counting(2)
        assert thunder.current_program() is consumer
        n, inner = next(steps)
        assert (n, inner.name) == (0, "inner")
        assert thunder.current_program() is consumer
        assert steps.send("t")[0] == 1
        assert tenant.get() == "t"  # other context variables behave as in any generator
        assert steps.throw(KeyError("k")) == ("caught", "k")
        with pytest.raises(StopIteration) as stop:
            next(steps)
        assert stop.value.value == "done"
        assert thunder.current_program() is consumer
    outcomes = sorted(str(p.outcome) for p in server.programs.values())
    assert outcomes == ["error", "success", "success", "success"]


def test_a_generator_that_is_closed_is_dropped(server):
    steps = counting(2)
    next(steps)
    steps.close()
    assert [p.outcome for p in server.programs.values()] == ["dropped", "dropped"]


def test_a_generator_that_fails(server):
    @thunder.program
    def failing():
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(failing())
    assert [p.outcome for p in server.programs.values()] == ["error"]


def test_a_generator_finished_in_another_thread(server):
    steps = counting(1)
    next(steps)
    thread = threading.Thread(target=steps.close)
    thread.start()
    thread.join()
    assert thunder.current_program() is None
    assert [p.outcome for p in server.programs.values()] == ["dropped", "dropped"]


def test_a_generator_that_is_forgotten(server):
    steps = counting(1)
    next(steps)
    del steps
    gc.collect()
    thunder.flush(30)
    assert [p.outcome for p in server.programs.values()] == ["dropped", "dropped"]


def test_a_plain_generator_closed_elsewhere(server):
    def plain():
        with thunder.program():
            yield

    steps = plain()
    next(steps)
    contextvars.copy_context().run(steps.close)
    assert thunder.current_program() is None
    assert [p.outcome for p in server.programs.values()] == ["dropped"]


@thunder.program
async def streaming(limit):
    for n in range(limit):
        try:
            await asyncio.sleep(0)
            got = yield (n, thunder.current_program().name)
            assert thunder.current_program().name == "streaming"
            tenant.set(got)
        except KeyError as error:
            yield ("caught", error.args[0])


async def test_async_generators(server):
    import inspect

    assert inspect.isasyncgenfunction(streaming)
    async with thunder.program("consumer") as consumer:
        steps = streaming(2)
        assert await anext(steps) == (0, "streaming")
        assert thunder.current_program() is consumer
        assert await steps.athrow(KeyError("k")) == ("caught", "k")
        assert await steps.asend("t") == (1, "streaming")
        with pytest.raises(StopAsyncIteration):
            await steps.asend("u")
        assert tenant.get() == "u"
        assert [item async for item in streaming(1)] == [(0, "streaming")]
        closed = streaming(1)
        await anext(closed)
        await closed.aclose()
        failing = streaming(1)
        await anext(failing)
        with pytest.raises(ZeroDivisionError):
            await failing.athrow(ZeroDivisionError())
        assert thunder.current_program() is consumer
    outcomes = [p.outcome for p in server.programs.values() if p.fields["name"] == "streaming"]
    assert outcomes == ["success", "success", "dropped", "error"]


async def test_an_async_generator_closed_in_another_task(server):
    steps = streaming(2)
    await anext(steps)
    await asyncio.create_task(steps.aclose())
    assert thunder.current_program() is None
    assert [p.outcome for p in server.programs.values()] == ["dropped"]


async def test_acting_decorates_every_kind(server):
    @thunder.acting("a")
    def sync():
        return 1

    @thunder.acting("b", expected=1)
    async def coroutine():
        return 2

    @thunder.acting("c")
    def generator():
        yield 3

    async with thunder.program() as p:
        assert (sync(), await coroutine(), list(generator())) == (1, 2, [3])

        @p.acting("d")
        def bound():
            return 4

        assert (bound(), bound()) == (4, 4)
    started = [e for e in server.events if e["type"] == "acting.started"]
    assert [e["tool"] for e in started] == ["a", "b", "c", "d", "d"]
    assert len({e["call_id"] for e in started}) == 5
    assert sync() == 1  # without a program


# --- handles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_pickles_are_handles(server, module):
    with thunder.program("x", group="g", priority=2, max_wait=3) as p:
        handle = pickle.loads(module.dumps(p))
        assert handle is not p
        assert (handle.id, handle.name, handle.group, handle.headers()) == (p.id, "x", "g", p.headers())
        with handle as same, handle.acting("bash"):
            assert thunder.current_program() is same is handle
        handle.close()
        handle.heartbeat()
        assert thunder.current_program() is p
        assert handle.outcome is None
        work = module.dumps(p.acting) if module is cloudpickle else None
        if work:
            with pickle.loads(work)("from a closure"):
                pass
    assert [r.method for r in server.requests].count("DELETE") == 1
    assert {e["type"] for e in server.events} == {"acting.started", "acting.finished"}


def test_a_handle_learns_of_the_end(server):
    with thunder.program() as p:
        handle = thunder.attach(p.serialize())
    with handle.acting("late"):
        pass
    assert thunder.flush(30)
    assert handle.status == "terminated"
    assert handle.outcome == "success"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "7", None, 7, '{"v": 2, "id": "x"}', '{"v": 1}', '{"v": 1, "id": "a b"}',
        '{"v": 1, "id": "x", "group": 7}', '{"v": 1, "id": "x", "priority": true}',
        '{"v": 1, "id": "x", "name": 7}', "[" * 100_000,
    ],
    ids=lambda text: str(text)[:30],
)  # fmt: skip
def test_what_is_no_handle(text):
    with pytest.raises(thunder.ThunderConfigError, match="no program context"):
        thunder.attach(text)


def test_the_environments_program(server, monkeypatch, caplog):
    from thunder_sdk.testing import use_sdk

    outer = thunder.program("outer", group="g")
    monkeypatch.setenv("THUNDER_PROGRAM_CONTEXT", outer.serialize())
    with use_sdk(server.url):
        found = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: found.put(thunder.current_program()))
        thread.start()
        thread.join()
        handle = thunder.current_program()
        assert found.get() is handle
        assert handle.id == outer.id
        with thunder.program() as inner:
            assert (inner.parent_id, inner.group) == (outer.id, "g")
        assert thunder.current_program() is handle
    monkeypatch.setenv("THUNDER_PROGRAM_CONTEXT", "garbage")
    with use_sdk(server.url):
        assert thunder.current_program() is None
        assert thunder.current_program() is None
    assert caplog.text.count("THUNDER_PROGRAM_CONTEXT is ignored") == 1
