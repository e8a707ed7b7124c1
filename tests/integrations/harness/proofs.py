"""What tests show: the cells of the table in ``docs/integrations.md``.

``@pytest.mark.proves("litellm", "identity", "streaming")`` claims two cells; with ``partly="reason"`` they
hold with that restriction. A cell that nobody proves is a no, whose reason is in ``limits.toml``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CAPABILITIES = (
    "identity",
    "acting",
    "expected duration",
    "resources",
    "end",
    "streaming",
    "async",
    "threads",
    "children",
)
FRAMEWORKS = {
    "litellm": "LiteLLM",
    "litellm-proxy": "LiteLLM proxy",
    "minisweagent": "mini-swe-agent",
    "sweagent": "SWE-agent",
    "openhands": "OpenHands SDK",
    "openai-agents": "OpenAI Agents",
    "langchain": "LangChain, LangGraph",
    "pydantic-ai": "pydantic-ai",
    "smolagents": "smolagents",
    "autogen": "AutoGen",
    "crewai": "CrewAI",
    "run": "anything, by `thunder run`",
}
LIMITS = Path(__file__).parents[1] / "limits.toml"


@dataclass(frozen=True)
class Proof:
    """One cell that one test shows."""

    framework: str
    capability: str
    partly: str | None
    passed: bool = True


def claims(args: Iterable[str], partly: str | None = None) -> list[Proof]:
    """The cells of one mark."""
    framework, *capabilities = args
    assert framework in FRAMEWORKS, f"{framework!r}: one of {', '.join(FRAMEWORKS)}"
    for capability in capabilities:
        assert capability in CAPABILITIES, f"{capability!r}: one of {', '.join(CAPABILITIES)}"
    return [Proof(framework, capability, partly) for capability in capabilities]


def proofs_of(item: pytest.Item) -> list[tuple[str, Any]]:
    """What a test's marks claim, to travel with its report."""
    marks = item.iter_markers("proves")
    return [
        ("proves", [proof.framework, proof.capability, proof.partly])
        for mark in marks
        for proof in claims(mark.args, **mark.kwargs)
    ]


class Ledger:
    """Keeps what a run has shown, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: list[Proof] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome == "failed":
            for name, cell in report.user_properties:
                if name == "proves" and isinstance(cell, (list, tuple)):
                    framework, capability, partly = cell
                    self._proofs.append(Proof(framework, capability, partly, report.outcome == "passed"))

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        rows = sorted([vars(proof) for proof in self._proofs], key=str)
        self._path.write_text(json.dumps(rows, indent=1) + "\n")


def limits() -> dict[str, dict[str, str]]:
    """Why cells are no: ``{framework: {capability: reason}}``."""
    return tomllib.loads(LIMITS.read_text())


def recorded(path: Path) -> list[Proof]:
    """What a run has shown."""
    return [Proof(**row) for row in json.loads(path.read_text())]
