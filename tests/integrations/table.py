"""Writes the table of ``docs/integrations.md`` from what a run of the tests has shown.

``make test-integrations`` calls it at its end.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .harness.proofs import CAPABILITIES, FRAMEWORKS, Proof, claims, limits, recorded

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "integrations.md"
RESULTS = ROOT / "build" / "integrations.json"
BEGIN, END = "<!-- table -->", "<!-- /table -->"


def declared() -> list[Proof]:
    """What the tests claim to show, read off their marks without running them."""
    return [proof for path in sorted(Path(__file__).parent.rglob("test_*.py")) for proof in _claims(path)]


def _claims(path: Path) -> Iterator[Proof]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.proves":
            options = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
            yield from claims([ast.literal_eval(word) for word in node.args], **options)


def render(proofs: Sequence[Proof]) -> str:
    """The table, and below it the reasons of whatever is not a yes."""
    why = limits()
    notes: list[str] = []
    shown = [name for name in FRAMEWORKS if any(proof.framework == name for proof in proofs)]
    lines = ["| | " + " | ".join(CAPABILITIES) + " |", "|---" * (len(CAPABILITIES) + 1) + "|"]
    for framework in shown:
        cells = []
        for capability in CAPABILITIES:
            cell = [
                proof for proof in proofs if (proof.framework, proof.capability) == (framework, capability)
            ]
            word, reason = _verdict(cell, why.get(framework, {}).get(capability))
            if reason:
                if reason not in notes:
                    notes.append(reason)
                word += f" [{notes.index(reason) + 1}]"
            cells.append(word)
        name = FRAMEWORKS[framework]
        page = PAGE.with_suffix("") / f"{framework}.md"
        if page.exists():
            name = f"[{name}](integrations/{framework}.md)"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"{number}. {reason}" for number, reason in enumerate(notes, 1)]
    return "\n".join(lines).rstrip() + "\n"


def _verdict(cell: list[Proof], limit: str | None) -> tuple[str, str | None]:
    if any(not proof.passed for proof in cell):
        return "no", "its test fails"
    if not cell:
        return "no", limit or "not tested"
    if all(proof.partly for proof in cell):
        return "partly", cell[0].partly
    return "yes", None


def contradictions(proofs: Sequence[Proof]) -> list[str]:
    """Cells that the tests and ``limits.toml`` disagree on: both, or neither, speak of them."""
    found = []
    why = limits()
    proven = {(proof.framework, proof.capability) for proof in proofs}
    for framework in dict.fromkeys(proof.framework for proof in proofs):
        for capability in CAPABILITIES:
            limited = capability in why.get(framework, {})
            if limited == ((framework, capability) in proven):
                found.append(
                    f"{framework}, {capability}: "
                    + ("proven, yet in limits.toml" if limited else "neither proven nor in limits.toml")
                )
    return found


def page_with(table: str) -> str:
    """The page around `table`."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table}{END}{after}"


def main(words: Sequence[str]) -> None:
    """With ``--declared`` from the marks alone, for who has not all lanes."""
    proofs = declared() if "--declared" in words else recorded(RESULTS)
    not_run = {_cell(proof) for proof in declared()} - {_cell(proof) for proof in proofs}
    if not_run:
        print("docs/integrations.md stays as it is, for these did not run:", *sorted(not_run), sep="\n  ")
    else:
        PAGE.write_text(page_with(render(proofs)))


def _cell(proof: Proof) -> str:
    return f"{proof.framework}, {proof.capability}"


if __name__ == "__main__":
    main(sys.argv[1:])
