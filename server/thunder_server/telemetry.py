"""``/metrics``: what the server has done and how things stand, as Prometheus families ``thunder_*``.

Counts are the core's own plain ints and become families only when somebody scrapes. No series belongs to one
program: their number is bounded by the backends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thunder_sdk.wire import ResourceKind
from thunder_server import views
from thunder_server.core.decisions import Decision, Dispatch, Refusal, Restore
from thunder_server.core.events import CallEnd, Event, Outcome
from thunder_server.core.program import Phase, Status
from thunder_server.core.resources import ResourceState
from thunder_server.families import counter, counters, gauge
from thunder_server.prefix_telemetry import prefix_families
from thunder_server.runtime import Runtime

WAIT_BUCKETS: Final = (
    0.001,
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    540.0,
)


class Distribution:
    """Counts of observed values below each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, help_text: str) -> Metric:
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._sum)


class Telemetry(Collector):
    """``/metrics`` of one runtime. ``policy`` is the name of the policy at work."""

    def __init__(self, runtime: Runtime, policy: str) -> None:
        self._runtime = runtime
        self._policy = policy
        self._waits = Distribution(WAIT_BUCKETS)
        self._paused = Distribution(WAIT_BUCKETS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, event: Event, decided: Sequence[Decision]) -> None:
        """Take the times out of what was decided: the runtime's observer."""
        for decision in decided:
            if isinstance(decision, Dispatch):
                self._waits.add(decision.waited_s)
            elif isinstance(decision, Restore):
                self._paused.add(decision.paused_s)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format that an ``Accept`` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        done = self._runtime.scheduler.counters
        yield gauge("thunder_policy", "1 for the policy at work", ("policy",), {(self._policy,): 1})
        yield counter("thunder_programs_opened", "Programs opened", done.programs_opened)
        yield counters(
            "thunder_programs_ended", "Programs that ended", "outcome", Outcome, done.programs_ended
        )
        yield counter("thunder_calls_arrived", "Calls that came in", done.calls_arrived)
        yield counter("thunder_calls_dispatched", "Calls sent to an engine", done.calls_dispatched)
        yield counters(
            "thunder_calls_ended", "Calls that ended by themselves", "end", CallEnd, done.calls_ended
        )
        yield counters("thunder_calls_refused", "Calls that we ended", "code", Refusal, done.refusals)
        tokens = {
            "prompt": done.tokens.prompt,
            "completion": done.tokens.completion,
            "cached": done.tokens.cached,
        }
        yield counters("thunder_tokens", "Tokens, as the engines count them", "kind", tuple(tokens), tokens)
        yield counter("thunder_programs_queued", "New programs that found no room", done.queued)
        yield counter("thunder_pauses", "Programs that left a backend for the global queue", done.pauses)
        yield counter("thunder_restores", "Programs that left the global queue", done.restores)
        yield counter("thunder_touches", "Prompts sent again to keep contexts warm", done.touches)
        yield counter("thunder_moves", "Programs that came to another backend than before", done.moves)
        yield counter("thunder_marks", "Reasoning programs marked to be paused", done.marks)
        yield self._waits.family(
            "thunder_call_wait_seconds", "How long calls were held before they were sent"
        )
        yield self._paused.family("thunder_pause_seconds", "How long programs had been paused when restored")
        yield from self._programs()
        yield from self._resources()
        yield from self._backends()
        yield from prefix_families(self._runtime)
        if (warmth := self._runtime.warmth) is not None:
            yield counter("thunder_touches_failed", "Of those, not answered with success", warmth.failed)
            held: dict[tuple[str, ...], float] = {(): warmth.held_bytes}
            yield gauge("thunder_prompts_held_bytes", "Latest prompts, held to be sent again", (), held)

    def _programs(self) -> Iterator[Metric]:
        standing = Counter(
            (str(program.status), str(program.phase)) for program in self._runtime.scheduler.programs.values()
        )
        kinds = [(str(status), str(phase)) for status in Status for phase in Phase]
        yield gauge(
            "thunder_programs",
            "Programs by where they stand; terminated ones for ten minutes",
            ("status", "phase"),
            {kind: standing[kind] for kind in kinds},
        )
        calls = self._runtime.calls.values()
        waiting = sum(call.dispatch is None for call in calls)
        yield gauge(
            "thunder_calls",
            "Calls under way",
            ("state",),
            {("waiting",): waiting, ("running",): len(calls) - waiting},
        )

    def _resources(self) -> Iterator[Metric]:
        scheduler = self._runtime.scheduler
        done = scheduler.counters
        standing = Counter(
            (holding.thing.key.kind, holding.state.value) for holding in scheduler.ledger.holdings
        )
        kinds = [(kind, state) for kind in ResourceKind for state in ResourceState]
        yield gauge(
            "thunder_resources",
            "What programs hold and held; of terminated ones for ten minutes, if nothing is left to be done",
            ("kind", "state"),
            {(kind.value, state.value): standing[kind.value, state.value] for kind, state in kinds},
        )
        leaked = sum(standing[kind.value, ResourceState.FAILED.value] for kind in ResourceKind)
        yield gauge("thunder_resources_leaked", "What could not be reclaimed, for now", (), {(): leaked})
        ends = (ResourceState.RECLAIMED, ResourceState.SPARED, ResourceState.FAILED)
        yield counters(
            "thunder_resources_ended",
            "What became of things to be removed",
            "end",
            ends,
            done.resources_ended,
        )
        environments = {"ready": done.environments_prepared, "failed": done.environments_failed}
        yield counters(
            "thunder_environments_prepared",
            "Environments, by how preparing them ended",
            "end",
            tuple(environments),
            environments,
        )
        seconds = {"hidden": done.prepared_hidden_s, "not_hidden": done.prepared_exposed_s}
        yield counters(
            "thunder_environment_prepare_seconds",
            "Seconds of preparing environments, while nobody or somebody waited for them",
            "wait",
            tuple(seconds),
            seconds,
        )

    def _backends(self) -> Iterator[Metric]:
        shown = [views.backend(self._runtime, backend_id) for backend_id in self._runtime.backends]
        for key, help_text in (
            ("healthy", "1 if it can be used"),
            ("draining", "1 if it takes no new programs"),
            ("capacity_tokens", "KV capacity"),
            ("used_tokens", "KV in use"),
            ("active_programs", "Programs placed there"),
            ("running", "Calls running"),
            ("waiting", "Calls waiting inside the engine"),
            ("hit_rate", "Share of prompt tokens found in its cache lately"),
        ):
            values: dict[tuple[str, ...], float] = {
                (one["id"],): float(one[key]) for one in shown if one[key] is not None
            }
            yield gauge(f"thunder_backend_{key}", help_text, ("backend",), values)
