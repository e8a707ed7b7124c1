"""Spans, through the API alone."""

import asyncio
import pickle

import openai
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import thunder_sdk as thunder
from thunder_sdk import _tracing
from thunder_sdk.testing import use_sdk

pytestmark = pytest.mark.usefixtures("sdk")

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider():
    """OpenTelemetry lets a process set its provider once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(provider)
    else:
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture(autouse=True)
def spans():
    EXPORTER.clear()
    return lambda: {span.name: span for span in EXPORTER.get_finished_spans()}


def parent_of(span):
    return span.parent and span.parent.span_id


def test_programs_and_tools_nest(spans):
    with thunder.program("outer") as outer:
        with outer.acting("bash") as tool, thunder.program("inner") as inner:
            pass
        with thunder.program():
            pass
    found = spans()
    agent, execute, nested = (
        found["invoke_agent outer"],
        found["execute_tool bash"],
        found["invoke_agent inner"],
    )
    assert dict(agent.attributes) == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "outer", "gen_ai.agent.id": outer.id,
        "gen_ai.conversation.id": outer.id, "thunder.program.id": outer.id,
        "thunder.program.outcome": "success",
    }  # fmt: skip
    assert agent.kind is execute.kind is SpanKind.INTERNAL
    assert execute.attributes["gen_ai.operation.name"] == "execute_tool"
    assert execute.attributes["gen_ai.tool.name"] == "bash"
    assert execute.attributes["gen_ai.tool.call.id"] == tool.call_id
    assert execute.attributes["thunder.program.id"] == outer.id
    assert nested.attributes["gen_ai.agent.id"] == inner.id
    assert parent_of(agent) is None
    assert parent_of(execute) == agent.context.span_id
    assert parent_of(nested) == execute.context.span_id
    assert parent_of(found["invoke_agent"]) == agent.context.span_id
    assert "gen_ai.agent.name" not in found["invoke_agent"].attributes
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_errors_set_the_status(spans):
    with pytest.raises(ZeroDivisionError), thunder.program("p"), thunder.acting("t"):
        raise ZeroDivisionError("by zero")
    thunder.program("closed").__enter__().close("error")
    for name in ("invoke_agent p", "execute_tool t"):
        span = spans()[name]
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "by zero")
        assert span.attributes["error.type"] == "ZeroDivisionError"
        assert [event.name for event in span.events] == ["exception"]
    assert spans()["invoke_agent closed"].status.status_code is StatusCode.ERROR


def test_being_dropped_is_no_error(spans):
    with pytest.raises(asyncio.CancelledError), thunder.program("p"), thunder.acting("t"):
        raise asyncio.CancelledError
    assert spans()["invoke_agent p"].status.status_code is StatusCode.UNSET
    assert spans()["execute_tool t"].status.status_code is StatusCode.UNSET
    assert spans()["invoke_agent p"].attributes["thunder.program.outcome"] == "dropped"


def test_a_root_starts_a_trace_of_its_own(spans):
    tracer = trace.get_tracer("test")
    root = thunder.program("root", parent=None)
    with tracer.start_as_current_span("request"), thunder.program("served"), root:
        pass
    found = spans()
    assert parent_of(found["invoke_agent served"]) == found["request"].context.span_id
    assert parent_of(found["invoke_agent root"]) is None


def test_a_parent_that_is_not_current(spans):
    parent = thunder.program("parent").__enter__()
    otel_context.attach(otel_context.Context())
    with thunder.program("other", parent=None), thunder.program("child", parent=parent):
        pass
    with thunder.program("unopened's child", parent=thunder.program("unopened")):
        pass
    parent.__exit__(None, None, None)
    found = spans()
    assert parent_of(found["invoke_agent child"]) == found["invoke_agent parent"].context.span_id


def test_calls_carry_traceparent_and_never_baggage(server, spans):
    from opentelemetry import baggage

    with openai.OpenAI(base_url=server.url + "/v1", api_key="k") as client, thunder.program("p") as p:
        thunder.wrap_openai(client)
        token = otel_context.attach(baggage.set_baggage("secret", "1"))
        client.chat.completions.create(model="m", messages=[])
        with p.acting("bash"):
            client.chat.completions.create(model="m", messages=[])
        client.chat.completions.create(model="m", messages=[], extra_headers={"traceparent": "mine"})
        otel_context.detach(token)
    first, second, third = server.calls
    found = spans()
    agent = found["invoke_agent p"].context
    assert (
        first.headers["traceparent"]
        == f"00-{agent.trace_id:032x}-{agent.span_id:016x}-{agent.trace_flags:02x}"
    )
    assert f"{found['execute_tool bash'].context.span_id:016x}" in second.headers["traceparent"]
    assert third.headers["traceparent"] == "mine"
    assert not any("baggage" in call.headers for call in server.calls)


def test_handles_carry_the_trace(server, spans):
    with thunder.program("owner") as p:
        inside = p.serialize()
    outside = p.serialize()
    handle = thunder.attach(inside)
    assert thunder.attach(outside).span.get_span_context().span_id == handle.span.get_span_context().span_id
    with handle.acting("early"):  # not even current
        pass
    with pickle.loads(pickle.dumps(handle)), thunder.acting("bash"), thunder.program("child"):
        pass
    found = spans()
    owner = found["invoke_agent owner"].context
    assert parent_of(found["execute_tool early"]) == owner.span_id
    assert parent_of(found["execute_tool bash"]) == owner.span_id
    assert found["invoke_agent child"].context.trace_id == owner.trace_id


@pytest.mark.parametrize(
    "header",
    [None, "", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "01-" + "1" * 32 + "-" + "1" * 16 + "-01"],
)
def test_what_is_no_trace(header):
    assert _tracing.remote_span(header) is None


def test_generators_keep_spans_to_themselves(spans):
    @thunder.program
    def numbers():
        with thunder.acting("think"):
            yield trace.get_current_span()

    with trace.get_tracer("test").start_as_current_span("consumer") as consumer:
        for span in numbers():
            assert span is not consumer
            assert trace.get_current_span() is consumer
    found = spans()
    assert parent_of(found["execute_tool think"]) == found["invoke_agent numbers"].context.span_id
    assert parent_of(found["invoke_agent numbers"]) == found["consumer"].context.span_id


async def test_closing_elsewhere_leaves_no_error_behind(spans, caplog):
    p = await thunder.program("p").__aenter__()
    await asyncio.create_task(p.__aexit__(None, None, None))
    assert "invoke_agent p" in spans()
    assert caplog.text == ""


def test_disabled_makes_none(spans):
    with use_sdk(disabled=True), thunder.program(), thunder.acting("bash"):
        pass
    assert spans() == {}


def test_headers_to_a_url_follow_the_trace(server):
    with thunder.program() as p:
        assert p.headers_to(server.url) == {**p.headers(), "traceparent": _tracing.traceparent(p.span)}
    assert p.headers_to(server.url) == {}
