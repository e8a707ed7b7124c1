"""What engines and the server in front of them report about themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from thunder_server.backends.prometheus import parse
from thunder_server.backends.vllm import CACHE_CONFIG, read_metrics
from thunder_server.demo.fleet import DemoError
from thunder_server.demo.prompts import Filler, Sizes

KEY_VARIABLE = "OPENAI_API_KEY"
_CALIBRATION_WORDS = (20, 1020)


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Tokens looked up in prefix caches and found there, over all engines; ``None`` if they do not say."""

    queries: float
    hits: float

    def since(self, earlier: CacheCounts) -> CacheCounts:
        return CacheCounts(self.queries - earlier.queries, self.hits - earlier.hits)


def session() -> aiohttp.ClientSession:
    """For the demo's own requests; with the engines' key, if the user has set one for ``openai``."""
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))


def root(url: str) -> str:
    """An engine's root from whatever way of writing its URL."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def fetch_json(session: aiohttp.ClientSession, url: str) -> Any:
    """GET JSON, or a `DemoError` that says which URL does not answer and how."""
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise DemoError(f"{url} answers {response.status}: {(await response.text())[:200]}")
            return await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise DemoError(f"{url} does not answer: {error or type(error).__name__}") from error


async def read_model(session: aiohttp.ClientSession, url: str) -> tuple[str, int | None]:
    """The first model that an engine serves, and the longest prompt and answer it takes (if it says)."""
    models = await fetch_json(session, f"{root(url)}/v1/models")
    try:
        first = models["data"][0]
        return str(first["id"]), first.get("max_model_len")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise DemoError(f"{url}/v1/models names no model; is it an OpenAI-compatible engine?") from None


async def read_memory(session: aiohttp.ClientSession, url: str) -> tuple[int, int] | None:
    """Tokens that an engine's KV cache holds, and tokens in a block; ``None`` where it does not say."""
    page = await _read_metrics(session, url)
    load, configs = read_metrics(page), parse(page, frozenset({CACHE_CONFIG})).get(CACHE_CONFIG)
    if load is None or not load.capacity_tokens or not configs:
        return None
    return load.capacity_tokens, int(configs[0].labels["block_size"])


async def _read_metrics(session: aiohttp.ClientSession, url: str) -> str:
    """The page, or nothing where there is none."""
    try:
        async with session.get(f"{root(url)}/metrics") as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DemoError(f"{url} does not answer: {error or type(error).__name__}") from error


async def read_cache_counts(session: aiohttp.ClientSession, urls: Sequence[str]) -> CacheCounts | None:
    """Sums over engines, ``None`` where one of them does not count."""
    queries = hits = 0.0
    for url in urls:
        load = read_metrics(await _read_metrics(session, url))
        if load is None or load.prefix_queries is None or load.prefix_hits is None:
            return None
        queries += load.prefix_queries
        hits += load.prefix_hits
    return CacheCounts(queries, hits)


async def measure_sizes(session: aiohttp.ClientSession, url: str, model: str) -> Sizes:
    """What text costs in tokens at this engine, from two short calls."""
    filler = Filler()
    tokens = []
    for words in _CALIBRATION_WORDS:
        message = {"role": "user", "content": filler.text("fix", words - 1)}
        body = {"model": model, "max_tokens": 1, "messages": [message]}
        try:
            async with session.post(f"{root(url)}/v1/chat/completions", json=body) as response:
                text = await response.text()
                if response.status != 200:
                    said = f"{response.status}: {text[:200]}"
                    raise DemoError(f"{url} answers a chat of {words} words by {said}")
                tokens.append(int(json.loads(text)["usage"]["prompt_tokens"]))
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise DemoError(f"{url} does not answer a chat with usage: {error!r}") from error
    return Sizes.measured(words=_CALIBRATION_WORDS, tokens=(tokens[0], tokens[1]))
