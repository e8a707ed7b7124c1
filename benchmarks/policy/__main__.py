"""``make bench-policy``: the table of targets.

    python -m benchmarks.policy [--json FILE] [--seeds 0,1,2] [--processes 2]

Exit code 0 if ``phase``, or ``phase`` with ``--keep-warm``, reaches every target, else 1.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from rich.console import Console

from benchmarks.policy.best_cap import best_cap
from benchmarks.policy.tables import costs, figures, judgement
from benchmarks.policy.targets import CAP, ORACLE, PAPER, PHASE, WARM, verdicts
from benchmarks.policy.work import LOADS, SEEDS, Job, Row, run_all
from thunder_server.core import PaperSettings, PhaseSettings, Policy, make_policy
from thunder_server.simulation.oracle import Oracle
from thunder_server.simulation.replay import Signals

INFERRED = "phase, inferred"


def contenders() -> dict[str, tuple[Policy, Signals]]:
    """By the name they are listed under, but for ``cap``, whose N depends on the load. An oracle remembers,
    and is therefore for one run."""
    return {
        "passthrough": (make_policy("passthrough"), Signals.EXPLICIT),
        PAPER: (make_policy("paper"), Signals.EXPLICIT),
        "paper, decay 1": (make_policy("paper", PaperSettings(decay=1.0)), Signals.EXPLICIT),
        PHASE: (make_policy("phase"), Signals.EXPLICIT),
        INFERRED: (make_policy("phase"), Signals.INFERRED),
        WARM: (make_policy("phase", PhaseSettings(keep_warm=True)), Signals.EXPLICIT),
        ORACLE: (Oracle(), Signals.EXPLICIT),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), metavar="LIST")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150
    everything: list[Row] = []
    reaching = {PHASE, WARM}
    for load in LOADS:
        jobs = [
            Job(load, seed, name, policy, signals)
            for seed in seeds
            for name, (policy, signals) in contenders().items()
        ]
        rows: defaultdict[str, list[Row]] = defaultdict(list)
        for job, row in zip(jobs, run_all(jobs, arguments.processes), strict=True):
            rows[job.name].append(row)
        rows[CAP] = best_cap(load, seeds, arguments.processes)
        console.print(_heading(rows))
        console.print(figures(rows), costs(rows))
        for policy in (PHASE, WARM):
            judged = list(verdicts(load.working_set, rows, policy))
            console.print(judgement(policy, judged))
            if not all(verdict.holds for verdict in judged):
                reaching.discard(policy)
        everything.extend(row for policy in rows.values() for row in policy)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": everything}, indent=1) + "\n", encoding="utf-8")
    return 0 if reaching else 1


def _heading(rows: dict[str, list[Row]]) -> str:
    one = rows[PHASE][0]
    sets = ", ".join(f"{row['working_set']:.2f}" for row in rows[PHASE])
    return (
        f"\n{one['programs']} programs, working set {sets}, {one['replicas']} × {one['kv_tokens']:,} tokens; "
        f"cap's best N is {rows[CAP][0]['policy'].removeprefix('cap:')}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
