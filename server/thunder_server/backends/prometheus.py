"""Prometheus text exposition, as far as engines' ``/metrics`` need it.

A metrics page of an engine has a thousand lines, mostly histogram buckets, and is read once a second for each
backend. So only lines of wanted names are parsed, by the grammar of the format (labels with escapes,
timestamps, exemplars, ``NaN`` and ``Inf``). What does not follow the grammar is passed over: a page of
garbage has no samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=}))')
_CLOSE: Final = re.compile(r"[ \t]*}[ \t]*")
_VALUE: Final = re.compile(
    r"([+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf(?:inity)?|nan))"
    r"(?:[ \t]+[+-]?[\d.eE+-]+)?[ \t]*(?:#.*)?",  # a timestamp; an exemplar
    re.IGNORECASE,
)
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n"}
_LARGEST: Final = 1e18


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: ``name{labels} value``."""

    labels: Mapping[str, str]
    value: float


def parse(text: str, wanted: frozenset[str]) -> dict[str, list[Sample]]:
    """The samples of the ``wanted`` names, by name, in the order of the page. Never raises.

    >>> parse('a_total{engine="0"} 6.2e-05 1700000000\\nb 1\\n', frozenset({"a_total"}))
    {'a_total': [Sample(labels={'engine': '0'}, value=6.2e-05)]}
    """
    samples: dict[str, list[Sample]] = {}
    for line in text.split("\n"):
        name = _NAME.match(line)
        if name is None or name[1] not in wanted:
            continue
        sample = _sample(line, name.end())
        if sample is not None:
            samples.setdefault(name[1], []).append(sample)
    return samples


def total(samples: Sequence[Sample]) -> float | None:
    """Their sum; ``None`` if there are none, or one of them is no count.

    >>> total([Sample({}, 1.0), Sample({}, 2.0)]), total([])
    (3.0, None)
    """
    finite = all(math.isfinite(sample.value) for sample in samples)
    value = math.fsum(sample.value for sample in samples) if finite else -1.0
    return value if samples and 0.0 <= value < _LARGEST else None


def whole(samples: Sequence[Sample]) -> int | None:
    """Their sum, as a number of things."""
    value = total(samples)
    return None if value is None else int(value)


def _sample(line: str, position: int) -> Sample | None:
    labels: dict[str, str] = {}
    if line[position : position + 1] == "{":
        position += 1
        while (close := _CLOSE.match(line, position)) is None:
            label = _LABEL.match(line, position)
            if label is None or label[1] in labels:
                return None
            labels[label[1]] = _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), label[2])
            position = label.end()
        position = close.end()
    value = _VALUE.fullmatch(line.rstrip("\r"), position)
    return None if value is None else Sample(labels, float(value[1]))
