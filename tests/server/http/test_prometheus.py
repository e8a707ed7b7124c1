"""The text format of metrics: what the reference parser reads, and what it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from thunder_server.backends.prometheus import Sample, parse

WANTED = frozenset({"a", "b_total"})


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a 6.2e-05", 6.2e-05),
        ("a{} 1.", 1.0),
        ("a +1E3 1700000000000", 1000.0),
        ("a .5", 0.5),
        ('a{x="1",} 2 # {trace_id="t"} 1.0', 2.0),
        ("a +Inf", math.inf),
        ("  a\t-inf\r", -math.inf),
    ],
)
def test_values(line: str, value: float) -> None:
    assert [sample.value for sample in parse(line, WANTED)["a"]] == [value]


def test_nan_is_a_value() -> None:
    assert math.isnan(parse("a NaN", WANTED)["a"][0].value)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a None",
        "a 1 2 3 4",
        "a{x=1} 1",
        'a{x="1" 1',
        'a{x="1"y="2"} 1',
        'a{x="1",x="2"} 1',
        "a 0x10",
        "a 1_0",
        "a{x='1'} 1",
        "# a 1",
        "ab 1",
        "<html>",
        "a{ 1",
        'a{x="\\"} 1',
        "a 1e",
        "a --1",
        "a nanometres",
    ],
)
def test_garbage_is_passed_over(line: str) -> None:
    assert parse(f"{line}\nb_total 3", WANTED) == {"b_total": [Sample({}, 3.0)]}


def test_labels_are_unescaped() -> None:
    page = r'a{x="q\"uote",y="back\\slash",z="new\nline, }{="} 1'
    assert parse(page, WANTED)["a"][0].labels == {"x": 'q"uote', "y": "back\\slash", "z": "new\nline, }{="}


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=8),
            st.floats(allow_nan=False),
        ),
        max_size=5,
        unique_by=lambda pair: pair[0],
    )
)
def test_it_reads_what_the_reference_client_writes(pairs: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("a", "help\nwith a { line", ["label"], registry=registry)
    Counter("b", "a counter", registry=registry).inc(6.2e-05)
    Histogram("a_b", "no business of ours", registry=registry).observe(1)
    for label, value in pairs:
        gauge.labels(label).set(value)
    page = generate_latest(registry).decode()
    expected = {
        (sample.labels["label"], sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "a"
    }
    samples = parse(page, WANTED)
    assert {(sample.labels["label"], sample.value) for sample in samples.get("a", ())} == expected
    assert samples["b_total"] == [Sample({}, 6.2e-05)]


@given(st.text())
def test_no_page_makes_it_raise(page: str) -> None:
    parse(page, WANTED)
    parse(f"a{page}", WANTED)
