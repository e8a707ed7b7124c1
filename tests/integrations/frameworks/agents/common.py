"""What the agents of all frameworks have in common.

Every file beside this one is a script, that plays the scenarios which it reads, one a line.
"""

import asyncio
import contextvars
import inspect
import json
import os
import sys
import threading
import traceback

import thunder_sdk as thunder

MODEL = os.environ["MODEL"]
BASE_URL = os.environ["OPENAI_BASE_URL"]
EXPECTED = {"lookup": 4.0}
TASKS = [f"task-{n}" for n in range(20)]

PATIENCE = float(os.environ.get("PATIENCE", "10"))  # for what goes to our server

seen: list[str | None] = []  # the program that was current in each tool call
enough = threading.Event()  # ends a long one
_both = threading.Barrier(2)


def current_id() -> str | None:
    program = thunder.current_program()
    return None if program is None else program.id


def look(key: str) -> str:
    """The tool's work: two calls that need one another, so that only parallel ones come to an end."""
    seen.append(current_id())
    if key in ("left", "right"):
        _both.wait(20)
        thunder.flush(PATIENCE)  # that both run is with the server before either ends
    if key == "long":
        enough.wait(20)
    if key == "broken":
        raise LookupError("nothing there")
    return f"{key} found"


def bare_call() -> str:
    """A call that a thread of the user's makes by itself, with a client that could name the program."""
    from openai import OpenAI

    client = thunder.wrap_openai(OpenAI())
    done: list[str] = []

    def work() -> None:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "from a bare thread"}]
        )
        done.append(answer.choices[0].message.content)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return done[0]


def in_threads(work, tasks: list[str]) -> list:
    """`work` for each task, every one in a bare thread of its own, all at once."""
    results: dict[str, object] = {}

    def one(task: str) -> None:
        results[task] = work(task)

    threads = [threading.Thread(target=one, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[task] for task in tasks]


def main(scenarios: dict) -> None:
    """Plays those that standard input names, and prints after each a line of JSON with what it returned."""
    with asyncio.Runner() as loop:  # one for all: frameworks share clients, which stick to their loop
        for line in sys.stdin:
            name, environ = json.loads(line)
            os.environ.update(environ)
            seen.clear()
            enough.clear()
            _both.reset()
            try:
                answer = contextvars.copy_context().run(_play, scenarios[name], loop)
            except BaseException:
                answer = {"error": traceback.format_exc()}
            thunder.flush(PATIENCE)
            print("\n@answer " + json.dumps(answer), flush=True)


def _play(scenario, loop: asyncio.Runner) -> dict:
    answer = loop.run(_awaited(scenario)) if inspect.iscoroutinefunction(scenario) else scenario()
    return {"answer": answer, "seen": list(seen), "after": current_id()}


async def _awaited(scenario):
    before = current_id()
    answer = await scenario()
    assert current_id() == before, "a program is left behind"
    return answer
