"""The states of a program and the steps between them, from the scheduler's own table, for docs/policy.md.

python -m benchmarks.policy.diagram
"""

from __future__ import annotations

from thunder_server.core.program import TRANSITIONS, State


def diagram() -> str:
    """A Mermaid state diagram.

    >>> diagram().splitlines()[:3]
    ['stateDiagram-v2', '    [*] --> unplaced', '    unplaced --> placed: place']
    """
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNPLACED.value}"]
    lines += (
        f"    {before.value} --> {after.value}: {step.name.lower()}"
        for (before, step), after in TRANSITIONS.items()
    )
    lines.append(f"    {State.ENDED.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
