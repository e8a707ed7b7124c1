"""``/metrics`` under vLLM's names, labels and types, so that whatever reads vLLM reads this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from thunder_server.simulation.engine import Engine

CONTENT_TYPE = CONTENT_TYPE_LATEST


class VllmMetrics(Collector):
    """Reads the engine when it is asked; nothing is kept up to date in between."""

    def __init__(self, engine: Engine, *, model: str) -> None:
        self.finished: Counter[str] = Counter()  # requests by finish reason
        self._engine = engine
        self._labels = {"engine": "0", "model_name": model}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        yield self._gauge(
            "num_requests_running", "Number of requests in model execution batches.", len(engine.running)
        )
        yield self._gauge(
            "num_requests_waiting", "Number of requests waiting to be processed.", len(engine.waiting)
        )
        yield self._gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_usage
        )
        yield self._counter(
            "prefix_cache_queries", "Prefix cache queries, in queried tokens.", counters.prefix_cache_queries
        )
        yield self._counter(
            "prefix_cache_hits", "Prefix cache hits, in cached tokens.", counters.prefix_cache_hits
        )
        yield self._counter("num_preemptions", "Cumulative number of preemptions.", counters.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens)
        yield self._counter(
            "generation_tokens", "Number of generation tokens processed.", counters.generation_tokens
        )
        success = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason in ("stop", "length", "abort"):
            success.add_metric([*self._labels.values(), reason], self.finished[reason])
        yield success
        # vLLM counts a block that it never uses; readers subtract it.
        config = {
            "block_size": str(engine.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "num_gpu_blocks": str(engine.cache.size + 1),
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=list(config)
        )
        info.add_metric(list(config.values()), 1.0)
        yield info

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
