"""SGLang: load on ``/metrics`` (with ``--enable-metrics``), KV capacity there or in ``/server_info``.

``/health`` is not asked: an idle SGLang generates a token to answer it, and a busy one answers when its next
step is done. Behind one page may be several engines (data parallel), told apart by ``dp_rank``; they count
as their sum. What its radix cache keeps of finished requests counts as free there, as it can be evicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from thunder_server.backends.openai import OpenAIEngine
from thunder_server.backends.prometheus import Sample, parse, total, whole
from thunder_server.backends.reading import Answer, Get, Load

_CAPACITY: Final = "sglang:max_total_num_tokens"  # not in older versions
_USED: Final = "sglang:num_used_tokens"
_RUNNING: Final = "sglang:num_running_reqs"
_WAITING: Final = "sglang:num_queue_reqs"
_HITS: Final = "sglang:cached_tokens_total"  # not there before the first hit
_QUERIES: Final = "sglang:prompt_tokens_total"
_WANTED: Final = frozenset({_CAPACITY, _USED, _RUNNING, _WAITING, _HITS, _QUERIES})
_INFO_EVERY: Final = 5
"""Looks between two questions for ``/server_info``, which bothers the engine's scheduler to be answered."""
_LARGEST_CAPACITY: Final = 1 << 50


class SglangEngine(OpenAIEngine):
    """Lives as any OpenAI-compatible server does."""

    def __init__(self) -> None:
        self._looks = 0
        self._told: int | None = None

    async def load(self, get: Get) -> Load | None:
        page = await get("/metrics")
        samples = parse(_text(page), _WANTED)
        capacity = _capacity(sample.value for sample in _ranks(samples.get(_CAPACITY, ())))
        if capacity is None:
            capacity = await self._ask(get)
        if capacity is None and not samples:
            return None
        queries = total(samples.get(_QUERIES, ()))
        return Load(
            capacity_tokens=capacity,
            used_tokens=whole(_ranks(samples.get(_USED, ()))),
            running=whole(_ranks(samples.get(_RUNNING, ()))),
            waiting=whole(_ranks(samples.get(_WAITING, ()))),
            prefix_hits=(total(samples.get(_HITS, ())) or 0.0) if queries is not None else None,
            prefix_queries=queries,
        )

    async def _ask(self, get: Get) -> int | None:
        """What ``/server_info`` said lately."""
        if self._looks % _INFO_EVERY == 0:
            answer = await get("/server_info")
            if answer is not None and answer.status == 404:
                answer = await get("/get_server_info")  # its older name
            self._told = read_info(_text(answer))
        self._looks += 1
        return self._told


def read_info(text: str) -> int | None:
    """KV tokens of all data-parallel engines of one server; ``None`` if it does not say.

    >>> read_info('{"max_total_num_tokens": 1000, "dp_size": 2}')
    2000
    """
    try:
        info: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(info, dict):
        return None
    tokens, ranks = info.get("max_total_num_tokens"), info.get("dp_size") or 1
    if type(tokens) is not int or type(ranks) is not int:
        return None
    return _capacity([tokens] * ranks) if 0 < ranks <= 1 << 12 else None


def _ranks(samples: Sequence[Sample]) -> list[Sample]:
    """One sample of each data-parallel engine: its tensor-parallel ranks tell the same."""
    return list({sample.labels.get("dp_rank"): sample for sample in samples}.values())


def _capacity(tokens: Iterable[float]) -> int | None:
    each = list(tokens)
    fine = all(0 < one < _LARGEST_CAPACITY for one in each)
    return int(sum(each)) if each and fine else None


def _text(answer: Answer | None) -> str:
    return "" if answer is None or answer.status != 200 else answer.body.decode("utf-8", "replace")
