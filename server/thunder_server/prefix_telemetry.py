"""What is known of prefix caches, and how well, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from thunder_server.families import counters, gauge
from thunder_server.runtime import Runtime

_FORECAST = (
    ("predictions", "calls", "Calls whose usage told what was cached"),
    ("exact_predictions", "exact", "Those of them that had been predicted to the token"),
    ("predicted_tokens", "predicted", "Prompt tokens that were expected in its cache"),
    ("cached_tokens", "cached", "Those that were there, of the same calls"),
    ("mispredicted_tokens", "off", "By how many tokens that was wrong, call by call"),
)
_HEARD = (
    ("messages", "Messages about its prefix cache"),
    ("replayed", "Those that had been missed and were told again"),
    ("lost", "Those that could not be had again"),
    ("unreadable", "Those that made no sense"),
)


def prefix_families(runtime: Runtime) -> Iterator[Metric]:
    """Predicted against actual hits, shadow decisions, tokenizing, and the state of KV events."""
    scheduler = runtime.scheduler
    backends = list(scheduler.backends.values())
    for name, field, help_text in _FORECAST:
        family = CounterMetricFamily(f"thunder_prefix_{name}", help_text, labels=("backend",))
        for backend in backends:
            family.add_metric((backend.id,), getattr(backend.forecast, field))
        yield family
    yield gauge(
        "thunder_prefix_shared_tokens",
        "Tokens that programs placed there have in common, beyond the first of each",
        ("backend",),
        {(backend.id,): backend.sharing.credit for backend in backends},
    )
    router = scheduler.router
    verdicts = {"agreed": router.agreed, "differed": router.compared - router.agreed}
    yield counters(
        "thunder_shadow_decisions",
        "Placements in shadow mode, and whether the router would have made the same",
        "verdict",
        tuple(verdicts),
        verdicts,
    )
    yield from _kv_events(runtime)


def _kv_events(runtime: Runtime) -> Iterator[Metric]:
    blocks, followed = runtime.prompt_blocks, runtime.kv_events
    asked = {"answered": blocks.answered, "late": blocks.late, "failed": blocks.failed}
    yield counters("thunder_tokenized", "Prompts given to engines to tokenize", "result", tuple(asked), asked)
    for field, help_text in _HEARD:
        family = CounterMetricFamily(f"thunder_kv_events_{field}", help_text, labels=("backend",))
        for backend_id, events in followed.items():
            family.add_metric((backend_id,), getattr(events.heard, field))
        yield family
    yield gauge(
        "thunder_kv_events_exact",
        "1 if everything is known that its prefix cache holds",
        ("backend",),
        {(backend_id,): float(events.exact) for backend_id, events in followed.items()},
    )
    yield gauge(
        "thunder_kv_events_age_seconds",
        "Since the last message",
        ("backend",),
        {
            (backend_id,): runtime.now() - events.heard.last_at
            for backend_id, events in followed.items()
            if events.heard.last_at is not None
        },
    )
