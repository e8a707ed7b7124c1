"""Spans through the OpenTelemetry API alone: without an OpenTelemetry SDK they cost and do nothing."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def start_agent(program_id: str, name: str | None, parent: Context | None) -> Span:
    """``invoke_agent {name}``, a child of `parent`'s span; None for the span of the moment."""
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": program_id,
        "gen_ai.conversation.id": program_id,
        "thunder.program.id": program_id,
    }
    if name is not None:
        attributes["gen_ai.agent.name"] = name
    title = "invoke_agent" if name is None else f"invoke_agent {name}"
    return _start(title, attributes, parent)


def start_tool(program_id: str, tool: str, call_id: str, parent: Context | None) -> Span:
    """``execute_tool {tool}``."""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.conversation.id": program_id,
        "thunder.program.id": program_id,
    }
    return _start(f"execute_tool {tool}", attributes, parent)


def _start(title: str, attributes: dict[str, str], parent: Context | None) -> Span:
    tracer = trace.get_tracer("thunder_sdk")
    return tracer.start_span(title, context=parent, kind=SpanKind.INTERNAL, attributes=attributes)


def end(span: Span, error: BaseException | None, *, failed: bool, outcome: str | None = None) -> None:
    """Ends `span`; `failed` sets its status."""
    if error is not None and failed:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
    if failed:
        span.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
    if outcome is not None:
        span.set_attribute("thunder.program.outcome", outcome)
    span.end()


def traceparent(fallback: Span | None) -> str | None:
    """The W3C header for the span of the moment, else for `fallback`, else None."""
    return traceparent_of(trace.get_current_span()) or traceparent_of(fallback)


def traceparent_of(span: Span | None) -> str | None:
    """The W3C header for `span`, None if it is none that could be followed."""
    if span is None:
        return None
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def remote_span(header: str | None) -> Span | None:
    """The span of another process that `header`, a ``traceparent``, names; None if it names none."""
    match = _TRACEPARENT.fullmatch(header or "")
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return NonRecordingSpan(context) if context.is_valid else None


def context_for(span: Span | None, *, always: bool = False) -> Context | None:
    """Where a child of `span` starts. None if there is a span of the moment to be below, unless `always`."""
    if span is None or (not always and trace.get_current_span().get_span_context().is_valid):
        return None
    return trace.set_span_in_context(span)


class CurrentSpan:
    """Makes a span the current one, and undoes that wherever it is still so.

    Tokens would have to be given back in the context that they came from; blocks end elsewhere at times.
    """

    __slots__ = ("_before", "_context")

    def __init__(self, span: Span) -> None:
        self._before = otel_context.get_current()
        self._context = trace.set_span_in_context(span, self._before)
        otel_context.attach(self._context)

    def undo(self) -> None:
        """Restores what was before, unless that has happened or this is another context."""
        if otel_context.get_current() is self._context:
            otel_context.attach(self._before)
