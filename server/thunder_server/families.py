"""Prometheus families of plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


def gauge(
    name: str, help_text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)


def counters(
    name: str, help_text: str, label: str, known: Iterable[str], counts: Mapping[Any, float]
) -> Metric:
    """One series for each known label value, from the start: a rate needs a zero to rise from."""
    family = CounterMetricFamily(name, help_text, labels=(label,))
    for key in known:
        family.add_metric((str(key),), counts.get(key, 0))
    return family
