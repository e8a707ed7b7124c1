"""A run that never was: two programs and a sub-agent on two engines, with figures easy to check."""

from __future__ import annotations

from thunder_server.demo.engines import CacheCounts
from thunder_server.demo.plan import Script, Step
from thunder_server.demo.records import Acted, Called, Closed, Opened, Record
from thunder_server.demo.run import Emulated, Run, Task

START = 1_000_000.0
BACKENDS = ("127.0.0.1:1", "127.0.0.1:2")


def call(program: str, sent: float, answered: float, **fields: object) -> Called:
    defaults: dict[str, object] = {
        "wait_s": 0.0,
        "backend": BACKENDS[0],
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "cached_tokens": 0,
        "reusable_tokens": 0,
    }
    return Called(program=program, sent=START + sent, answered=START + answered, **defaults | fields)  # type: ignore[arg-type]


def a_script(name: str) -> Script:
    step = Step(prompt_tokens=1000, kept_tokens=0, output_tokens=100, gap_s=0.0, tool="bash")
    return Script(name=name, family="m", system_tokens=10, steps=(step,))


def a_run(policy: str = "paper", *, slower: float = 1.0) -> Run:
    records: list[Record] = [
        Opened(program="a", name="</script>&one", parent=None, at=START),
        Opened(program="b", name="two", parent=None, at=START),
        call("a", 0, 2),
        Acted(program="a", tool="bash", started=START + 2, ended=START + 4),
        Opened(program="c", name="two.child", parent="b", at=START + 1),
        call("c", 1, 3, backend=BACKENDS[1], prompt_tokens=500),
        Closed(program="c", at=START + 3),
        # 960 of 1000 tokens are whole blocks of 64, and 320 of them were still there.
        call("a", 4, 8, wait_s=1.0, prompt_tokens=2000, cached_tokens=320, reusable_tokens=1000),
        Closed(program="a", at=START + 8),
        call("b", 3, 9, backend=BACKENDS[1]),
        Closed(program="b", at=START + 10 * slower),
    ]
    transitions = [
        {"id": 1, "at": START + 3, "type": "program.paused", "program_id": "a", "backend": "e1:1"},
        {"id": 2, "at": START + 5, "type": "program.restored", "program_id": "a", "moved": True},
        {"id": 3, "at": START + 5, "type": "backend.reported", "program_id": None},
    ]
    task = Task(
        workload="test",
        policy=policy,
        scripts=(a_script("one"), a_script("two")),
        engines=Emulated(kv_tokens=4000, speed=1.0),
        salt="s",
    )
    return Run(
        task=task,
        backends=BACKENDS,
        records=records,
        transitions=transitions,
        cache=CacheCounts(4500.0, 900.0),
        started=START,
    )
