"""``make bench-policy``: the table of targets.

    python -m benchmarks.policy [--json FILE] [--seeds 0,1,2] [--processes 2]

Exit code 0 if every target holds, 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from rich.console import Console

from benchmarks.policy.best_cap import best_cap
from benchmarks.policy.tables import costs, figures, judgement
from benchmarks.policy.targets import CAP, ORACLE, PAPER, PHASE, verdicts
from benchmarks.policy.work import LOADS, SEEDS, Job, Row, run_all
from thunder_server.core import PaperSettings, Policy, make_policy
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
    all_hold = True
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
        judged = list(verdicts(load.working_set, rows))
        console.print(_heading(rows))
        console.print(figures(rows), costs(rows), judgement(judged))
        everything.extend(row for policy in rows.values() for row in policy)
        all_hold &= all(verdict.holds for verdict in judged)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": everything}, indent=1) + "\n", encoding="utf-8")
    return 0 if all_hold else 1


def _heading(rows: dict[str, list[Row]]) -> str:
    one = rows[PHASE][0]
    sets = ", ".join(f"{row['working_set']:.2f}" for row in rows[PHASE])
    return (
        f"\n{one['programs']} programs, working set {sets}, {one['replicas']} × {one['kv_tokens']:,} tokens; "
        f"cap's best N is {rows[CAP][0]['policy'].removeprefix('cap:')}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
