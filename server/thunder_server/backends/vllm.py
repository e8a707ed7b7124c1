"""vLLM: everything about its memory and load is on its ``/metrics`` page.

Behind one page may be several engines (data parallel), told apart by the ``engine`` label; they count as
their sum. Block 0 of each engine's KV cache is a placeholder that never holds tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from thunder_server.backends.prometheus import Sample, parse, total, whole
from thunder_server.backends.reading import Get, Load

CACHE_CONFIG: Final = "vllm:cache_config_info"
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the latter until 0.10
_RUNNING: Final = ("vllm:num_requests_running",)
_WAITING: Final = ("vllm:num_requests_waiting",)
_HITS: Final = (
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits",
)
_QUERIES: Final = tuple(name.replace("hits", "queries") for name in _HITS)
_WANTED: Final = frozenset((CACHE_CONFIG, *_USAGE, *_RUNNING, *_WAITING, *_HITS, *_QUERIES))


class VllmEngine:
    """Lives while ``/health`` is no server error; a stand-in without that page lives if it answers at all."""

    async def alive(self, get: Get) -> bool:
        answer = await get("/health")
        return answer is not None and answer.status < 500

    async def load(self, get: Get) -> Load | None:
        answer = await get("/metrics")
        if answer is None or answer.status != 200:
            return None
        return read_metrics(answer.body.decode("utf-8", "replace"))


def read_metrics(page: str) -> Load | None:
    """Capacity and load of all engines behind this page; ``None`` if it is none of vLLM's.

    >>> read_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="1025"} 1.0').capacity_tokens
    16384
    """
    samples = parse(page, _WANTED)
    if not samples:
        return None
    capacities = [_capacity(sample) for sample in samples.get(CACHE_CONFIG, ())]
    known = [capacity for capacity in capacities if capacity is not None]
    capacity = sum(known) if known and len(known) == len(capacities) else None
    return Load(
        capacity_tokens=capacity,
        used_tokens=_used(samples.get(CACHE_CONFIG, ()), _first(samples, _USAGE)),
        running=whole(_first(samples, _RUNNING)),
        waiting=whole(_first(samples, _WAITING)),
        prefix_hits=total(_first(samples, _HITS)),
        prefix_queries=total(_first(samples, _QUERIES)),
    )


def _first(samples: dict[str, list[Sample]], names: Sequence[str]) -> Sequence[Sample]:
    return next((samples[name] for name in names if name in samples), ())


def _capacity(config: Sample) -> int | None:
    """Tokens that fit into one engine's cache; its labels may say ``"None"`` while it still starts."""
    try:
        blocks, size = int(config.labels["num_gpu_blocks"]), int(config.labels["block_size"])
    except (KeyError, ValueError):
        return None
    return (blocks - 1) * size if blocks > 1 and 0 < size <= 1 << 20 and blocks < 1 << 40 else None


def _used(configs: Sequence[Sample], usages: Sequence[Sample]) -> int | None:
    """Occupied tokens: each engine's share of its own capacity."""
    shares = {usage.labels.get("engine"): usage.value for usage in usages}
    used = 0.0
    for config in configs:
        capacity, share = _capacity(config), shares.get(config.labels.get("engine"))
        if share is None and len(configs) == len(usages) == 1:
            share = usages[0].value
        if capacity is None or share is None or not 0.0 <= share <= 1.0:
            return None
        used += capacity * share
    return round(used) if configs else None
