"""The token blocks of prompts, for engines that publish what they cache.

An engine's ``/tokenize`` says what tokens a prompt has. It is asked only for prompts that are long enough to
matter; a call waits for the answer for some milliseconds at most, and what comes later still tells the core,
and serves the next prompt that begins with this one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, TypeVar

import aiohttp
import msgspec

from thunder_server.backend_spec import BackendSpec
from thunder_server.backends.kv_events import KvEvents
from thunder_server.backends.token_blocks import block_keys
from thunder_server.core.prefix import Chain

log = logging.getLogger(__name__)

LONG_CHARS: Final = 2048
"""Prompts below are not tokenized: of about 500 tokens, there is little to gain."""
MOST_KEYS: Final = 4_000_000
"""Blocks of prompts that are remembered: 8 bytes each."""
_ANSWER_S: Final = 5.0
_AT_ONCE: Final = 4  # questions to one engine
_CHECK_S: Final = 600.0  # between two comparisons of two tokenizers
_COMPLETIONS: Final = "/v1/completions"
_CHAT: Final = "/v1/chat/completions"
_CHAT_MEMBERS: Final = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)
_UNKNOWN: Final = ("reasoning_effort", "documents", "mm_processor_kwargs", "functions")
"""Members that shape a prompt in a way ``/tokenize`` is not told of."""
_USUAL_BLOCK: Final = 16

_T = TypeVar("_T")


class Watched(Protocol):
    """A backend: what the operator says of it, whether it answers, and its models."""

    @property
    def spec(self) -> BackendSpec: ...

    @property
    def healthy(self) -> bool: ...

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]] | None: ...


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]]


class PromptBlocks:
    """Tokenizes prompts at those of the ``backends`` that publish their caches (``followed``).

    ``wait_s`` is how long a call may wait for its tokens.
    """

    def __init__(
        self,
        http: Callable[[], aiohttp.ClientSession],
        backends: Mapping[str, Watched],
        followed: Mapping[str, KvEvents],
        now: Callable[[], float],
        *,
        wait_s: float,
    ) -> None:
        self.answered = 0
        self.late = 0  # of those answered, or to be: after the call had to go on
        self.failed = 0
        self._http = http
        self._backends = backends
        self._followed = followed
        self._now = now
        self._wait_s = wait_s
        self._known: OrderedDict[int, Chain] = OrderedDict()  # by the last key of the messages' chain
        self._keys = 0
        self._busy: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turn = 0
        self._compared: dict[tuple[str, str], float] = {}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def find(
        self, path: str, fields: Mapping[str, Any], chain: Chain | None, late: Callable[[Chain], object]
    ) -> Chain | None:
        """The blocks of a prompt as far as they are known; ``late`` is given all of them if they become known
        only after ``wait_s``."""
        if not self._followed or chain is None or not len(chain) or chain.ends[-1] < LONG_CHARS:
            return None
        question = _question(path, fields)
        engines = self._engines(fields.get("model"))
        if not engines or question is None:
            return None
        if (known := self._known.get(chain.keys[-1])) is not None:
            self._known.move_to_end(chain.keys[-1])
            return known
        engine = engines[self._turn % len(engines)]
        self._turn += 1
        if self._busy.get(engine.spec.id, 0) < _AT_ONCE:
            task = self._do(self._learn(engine, question, chain, _extra(engine, fields)))
            self._compare(engines, question)
            await asyncio.wait((task,), timeout=self._wait_s)
            if not task.done():
                self.late += 1
                task.add_done_callback(lambda task: _tell(task, late))
            elif (blocks := task.result()) is not None:
                return blocks
        return self._nearest(chain)

    def _do(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _engines(self, model: object) -> list[Watched]:
        """Whom to ask about prompts for this model."""
        return [
            backend
            for backend_id, followed in self._followed.items()
            if followed.exact
            and (backend := self._backends.get(backend_id)) is not None
            and backend.healthy
            and (backend.models is None or model in backend.models)
        ]

    def _nearest(self, chain: Chain) -> Chain | None:
        """The blocks of the longest prompt known that this one begins with."""
        for key in reversed(chain.keys[:-1]):
            if (known := self._known.get(key)) is not None:
                return known
        return None

    async def _learn(
        self, engine: Watched, question: Mapping[str, Any], chain: Chain, extra: tuple[str, str]
    ) -> Chain | None:
        tokens = await self._ask(engine.spec, question)
        if tokens is None:
            return None
        size = self._followed[engine.spec.id].block_size or _USUAL_BLOCK
        adapter, salt = extra
        # The last token is computed in any case, and with it its block.
        count = (len(tokens) - 1) // size
        extras = [[adapter]] * count if adapter else []
        if salt and count:
            extras[:1] = [[adapter, salt] if adapter else [salt]]
        keys = block_keys(tokens[: count * size], size, extras=extras)
        blocks = Chain(keys, range(size, size * count + 1, size))
        self._keys += count
        self._known[chain.keys[-1]] = blocks
        while self._keys > MOST_KEYS:
            self._keys -= len(self._known.popitem(last=False)[1])
        return blocks

    async def _ask(self, engine: BackendSpec, question: Mapping[str, Any]) -> list[int] | None:
        self._busy[engine.id] = self._busy.get(engine.id, 0) + 1
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if engine.api_key is not None:
            headers["Authorization"] = f"Bearer {engine.api_key.get_secret_value()}"
        try:
            async with self._http().post(
                engine.url + "/tokenize",
                data=json.dumps(question).encode(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            ) as answer:
                if answer.status == 200:
                    self.answered += 1
                    return msgspec.json.decode(await answer.read(), type=_Tokens).tokens
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as failure:
            log.debug("backend %s: /tokenize: %r", engine.id, failure)
        finally:
            self._busy[engine.id] -= 1
        self.failed += 1
        return None

    # --- whether replicas agree ------------------------------------------------------------------------

    def _compare(self, engines: Sequence[Watched], question: Mapping[str, Any]) -> None:
        """Now and then have the same prompt tokenized by two replicas."""
        first, *others = engines
        for other in others:
            pair = (first.spec.id, other.spec.id)
            if self._now() - self._compared.get(pair, -_CHECK_S) >= _CHECK_S:
                self._compared[pair] = self._now()
                self._do(self._check(first.spec, other.spec, question))

    async def _check(self, first: BackendSpec, other: BackendSpec, question: Mapping[str, Any]) -> None:
        one, two = await asyncio.gather(self._ask(first, question), self._ask(other, question))
        if one is None or two is None:
            return
        size = self._followed[first.id].block_size
        sizes = {size, self._followed[other.id].block_size} - {None}
        if one != two:
            what = "make different tokens of the same prompt: their tokenizers or chat templates differ"
        elif len(sizes) > 1:
            what = f"cache in blocks of different sizes ({' and '.join(map(str, sizes))})"
        else:
            return
        log.warning(
            "backends %s and %s %s. The KV events of the latter say nothing about prompts, and are not used.",
            first.id,
            other.id,
            what,
        )
        self._followed[other.id].distrust()


def _extra(engine: Watched, fields: Mapping[str, Any]) -> tuple[str, str]:
    """What the blocks of a prompt depend on besides tokens: the adapter it is for, and the client's salt."""
    model, salt = str(fields.get("model")), fields.get("cache_salt")
    entry = (engine.models or {}).get(model, {})
    return model if entry.get("parent") else "", salt if isinstance(salt, str) else ""


def _question(path: str, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """What to ask ``/tokenize``; ``None`` for a prompt whose tokens it could not tell."""
    if any(fields.get(name) is not None for name in _UNKNOWN):
        return None
    if path == _COMPLETIONS and isinstance(fields.get("prompt"), str):
        asked = {"prompt": fields["prompt"]}
        if fields.get("add_special_tokens") is not None:
            asked["add_special_tokens"] = fields["add_special_tokens"]
    elif path == _CHAT and isinstance(fields.get("messages"), list):
        if fields.get("tools") and fields.get("tool_choice") == "none":
            return None  # some engines leave the tools out then, others do not
        if any(_has_media(message) for message in fields["messages"]):
            return None
        asked = {name: fields[name] for name in _CHAT_MEMBERS if fields.get(name) is not None}
    else:
        return None
    if isinstance(fields.get("model"), str):
        asked["model"] = fields["model"]
    return asked


def _has_media(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        not isinstance(part, dict) or part.get("type") not in ("text", "input_text") for part in content
    )


def _tell(task: asyncio.Task[Chain | None], late: Callable[[Chain], object]) -> None:
    if not task.cancelled() and task.exception() is None and (blocks := task.result()) is not None:
        late(blocks)
