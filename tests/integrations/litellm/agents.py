"""Agents on LiteLLM, one per scenario: ``agents.py SCENARIO``. What they print last is their result."""

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import litellm

import thunder_integrations.litellm
import thunder_sdk as thunder

litellm.suppress_debug_info = True
thunder_integrations.litellm.install()

BASE = os.environ["OPENAI_BASE_URL"]
MODELS = ("openai/m", "hosted_vllm/m")
OWN = {"model": "hosted_vllm/m", "api_base": BASE, "api_key": "k"}


def asks(text="hello"):
    return [{"role": "user", "content": text}]


def complete(text="hello", **options):
    return litellm.completion(**{**OWN, "messages": asks(text), **options})


async def acomplete(text="hello", **options):
    return await litellm.acompletion(**{**OWN, "messages": asks(text), **options})


def every_way():
    """Sync and async; chat, text, responses, messages; whole and streamed; by both kinds of models."""
    ids = []

    def program(*words):
        ids.append("-".join(words))
        return thunder.program(program_id=ids[-1])

    async def asynchronous(model, kind):
        options = {"model": model, "api_base": BASE, "api_key": "k"}
        for stream in (False, True):
            with program(kind, "async-chat", "stream" if stream else "whole"):
                answer = await litellm.acompletion(**options, messages=asks(), stream=stream)
                if stream:
                    [_ async for _ in answer]
            with program(kind, "async-responses", "stream" if stream else "whole"):
                answer = await litellm.aresponses(**options, input="hello", stream=stream)
                if stream:
                    [_ async for _ in answer]
        with program(kind, "messages"):
            await litellm.anthropic_messages(**options, messages=asks(), max_tokens=5)

    for model in MODELS:
        kind = model.split("/")[0]
        options = {"model": model, "api_base": BASE, "api_key": "k"}
        for stream in (False, True):
            with program(kind, "chat", "stream" if stream else "whole"):
                answer = litellm.completion(**options, messages=asks(), stream=stream)
                if stream:
                    list(answer)
            with program(kind, "text", "stream" if stream else "whole"):
                answer = litellm.text_completion(**options, prompt="hello", stream=stream)
                if stream:
                    list(answer)
            with program(kind, "responses", "stream" if stream else "whole"):
                answer = litellm.responses(**options, input="hello", stream=stream)
                if stream:
                    list(answer)
        asyncio.run(asynchronous(model, kind))
    return ids


def fifty_at_once():
    """Every call says in its text whose it is."""

    async def agent(number):
        async with thunder.program(program_id=f"fifty-{number}"):
            for step in range(3):
                model, stream = MODELS[(number + step) % 2], bool(number % 3)
                answer = await acomplete(f"fifty-{number}", model=model, stream=stream)
                if stream:
                    [_ async for _ in answer]

    async def all_of_them():
        await asyncio.gather(*(agent(number) for number in range(50)))

    asyncio.run(all_of_them())


def loops_and_threads():
    """Every call in an event loop of its own, then eight threads that have one each."""

    async def once(name, index):
        with thunder.program(program_id=name):
            await acomplete(name, model=MODELS[index % 2])

    for index in range(4):
        asyncio.run(once(f"own-loop-{index}", index))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: asyncio.run(once(f"thread-loop-{index}", index)), range(8)))


def broken_off():
    """Streams that are not read to their end, and calls that fail."""
    with thunder.program(program_id="early-break"):
        for _ in complete(stream=True, model="openai/m"):
            break

    async def leaves():
        async with thunder.program(program_id="early-break-async"):
            async for _ in await acomplete(stream=True):
                break

    asyncio.run(leaves())
    errors = []
    for index, stream in enumerate((False, True)):
        try:
            with thunder.program(program_id=f"refused-{index}"):
                answer = complete(stream=stream, max_retries=0, num_retries=0, frequency_penalty=9)
                list(answer)
        except litellm.BadRequestError as error:
            errors.append(type(error).__name__)
    return errors


def retried():
    """The engine fails twice; LiteLLM tries again."""
    with thunder.program(program_id="retried"):
        complete(num_retries=3, max_retries=0)


def routed():
    """A router over two names of the same server, whose first fails."""
    router = litellm.Router(
        model_list=[
            {"model_name": name, "litellm_params": {**OWN, "model": model}}
            for name, model in (("first", MODELS[0]), ("second", MODELS[1]))
        ],
        fallbacks=[{"first": ["second"]}],
        num_retries=0,
    )
    options = {"model": "first", "messages": asks(), "max_retries": 0}
    with thunder.program(program_id="router-sync"):
        router.completion(**options)

    async def later():
        async with thunder.program(program_id="router-async"):
            await router.acompletion(**options)

    asyncio.run(later())


def fallen_back():
    """Our server fails; somebody else's answers. Then a router does the same."""
    elsewhere = os.environ["ELSEWHERE"]
    foreign = {"api_base": elsewhere, "api_key": "theirs"}
    with thunder.program(program_id="fallback"):
        for model in MODELS:
            complete(model=model, max_retries=0, fallbacks=[{"model": model, **foreign}])
        litellm.responses(model="openai/m", input="hello", **foreign)
        complete(stream=True, **foreign)
    router = litellm.Router(
        model_list=[
            {"model_name": "ours", "litellm_params": dict(OWN)},
            {"model_name": "theirs", "litellm_params": {**OWN, **foreign}},
        ],
        fallbacks=[{"ours": ["theirs"]}],
        num_retries=0,
    )

    async def later():
        async with thunder.program(program_id="router-fallback"):
            await router.acompletion(model="ours", messages=asks(), max_retries=0)

    asyncio.run(later())


class Auth:
    """A proxy's credentials, as LiteLLM takes them."""

    def get_auth_headers(self):
        return {"X-Gateway-Key": "secret"}


class Watcher(litellm.integrations.custom_logger.CustomLogger):
    """Somebody else's callback."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def log_pre_api_call(self, model, messages, kwargs):
        self.calls += 1


def own_settings():
    """Everything of the user's own, before and after."""
    watcher = Watcher()
    litellm.proxy_auth, litellm.callbacks = Auth(), [watcher]
    for _ in range(3):
        thunder_integrations.litellm.install()
    hooks = [callback for callback in litellm.input_callback if type(callback).__name__ == "Tagger"]
    after = []
    for model in MODELS:
        headers = {"x-own": "1", "x-thunder-program-id": "set-by-hand"}
        body, metadata = {"seed": 7}, {"trace": "mine"}
        with thunder.program(program_id="not-this-one", group="g"):
            complete(model=model, extra_headers=headers, extra_body=body, metadata=metadata)
        # LiteLLM itself keeps notes in a call's metadata.
        after.append([headers, body, metadata["trace"], [name for name in metadata if "thunder" in name]])
    return {"after": after, "hooks": len(hooks), "watched": watcher.calls}


def worker_threads():
    """A raw thread knows no program; an executor of ours does."""
    with thunder.program(program_id="main-thread"):
        thread = Thread(target=complete, args=("raw",))
        thread.start()
        thread.join()
        with thunder.ContextThreadPoolExecutor(2) as pool:
            list(pool.map(complete, ["carried", "carried"]))
        # One worker, kept from program to program.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(complete, "raw").result()
            with thunder.program(program_id="second-program"):
                pool.submit(complete, "raw").result()


def family():
    """A program in a program, and one that fails."""
    with thunder.program(program_id="parent", group="family"):
        complete()
        try:
            with thunder.program(program_id="child"):
                complete()
                raise LookupError
        except LookupError:
            complete()


def simple():
    """Two calls and nothing else."""
    with thunder.program(program_id="simple"):
        return [complete(model=model).choices[0].message.content for model in MODELS]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
