"""Agents on real engines, without and with the scheduler: fixed work, several targets, several seeds.

    python -m benchmarks.engines --engine timer --vllm VENV/bin/vllm --json results.json --simulate

Starts the engines, runs every target with every seed, one after the other and the targets of a seed next to
each other, so that a machine that becomes slower is so for all; then stops everything. Prints a table as soon
as there is something to put into it. See ``benchmarks/engines/README.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.engines import replicas, table, work
from benchmarks.engines.replicas import Device, Engines, Kind
from benchmarks.engines.run import Result, perform
from benchmarks.engines.simulated import Host, endless_memory, measure_host, policy_of, simulate
from benchmarks.engines.targets import Target
from thunder_server.demo.fleet import DemoError, Fleet
from thunder_server.simulation.simulator import Machines

CALIBRATION = 4096  # tokens that measuring what a word costs may take
DEFAULT_TARGETS = ("direct", "direct:12", "thunder:paper", "thunder:phase", "thunder:phase/inferred")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument(
        "--engine", choices=list(Kind), default=Kind.TIMER, help="what to start (%(default)s)"
    )
    parser.add_argument("--engines", nargs="+", metavar="URL", help="engines that are there already, instead")
    parser.add_argument("--vllm", metavar="PATH", help="the vllm to start (the one on the PATH)")
    parser.add_argument("--replicas", type=int, default=2, metavar="N")
    parser.add_argument("--kv-tokens", type=int, default=16_384, metavar="N", help="of each replica")
    parser.add_argument(
        "--kv-events", action="store_true", help="vLLM publishes what it caches, and thunder follows"
    )
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="of --engine emulate")
    parser.add_argument(
        "--targets",
        nargs="+",
        type=_target,
        default=[Target.parse(name) for name in DEFAULT_TARGETS],
        metavar="TARGET",
        help="direct direct:N thunder:POLICY thunder:POLICY/inferred vllm-router NAME=URL",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    shape = work.Shape()
    parser.add_argument("--programs", type=int, default=shape.programs, metavar="N")
    parser.add_argument(
        "--at-a-time", type=int, default=24, metavar="N", help="programs at once (%(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=shape.turns, metavar="N", help="in the mean (%(default)s)"
    )
    parser.add_argument("--first", type=int, default=shape.first, metavar="N", help="tokens of first prompts")
    parser.add_argument("--growth", type=int, default=shape.growth, metavar="N", help="tokens a tool finds")
    parser.add_argument("--output", type=int, default=shape.output, metavar="N", help="tokens of an answer")
    parser.add_argument("--tool", type=float, default=shape.tool, metavar="S", help="seconds in the mean")
    parser.add_argument(
        "--slow", type=float, default=shape.slow, metavar="F", help="share of tools 10× as long"
    )
    parser.add_argument("--simulate", action="store_true", help="the same in the simulator, to compare")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and details")
    given = parser.parse_args(words)
    if given.simulate and given.speed != 1:
        parser.error("--simulate compares with engines at their own speed; leave --speed out")
    if given.kv_events and (given.engines or given.engine == Kind.EMULATE):
        parser.error("--kv-events is for vLLM that is started here: --engine timer or compute")
    return given


def _target(text: str) -> Target:
    try:
        target = Target.parse(text)
        if target.policy is not None:
            policy_of(target)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return target


class Benchmark:
    """All runs of one command, and what has come of them so far."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self._folder = folder
        self._shape = work.Shape(
            programs=given.programs,
            turns=given.turns,
            first=given.first,
            growth=given.growth,
            output=given.output,
            tool=given.tool,
            slow=given.slow,
        )
        self._device = Device(
            kind=Kind(given.engine),
            replicas=given.replicas,
            kv_tokens=given.kv_tokens,
            longest=min(given.kv_tokens, max(CALIBRATION, self._shape.largest_context() + 256)),
            vllm=given.vllm,
            speed=given.speed,
            kv_events=given.kv_events,
        )
        self.results: list[Result] = []
        self.simulated: list[dict[str, Any]] = []
        self.endless: dict[int, float] = {}
        self.host = Host()

    async def run(self) -> None:
        async with (
            Fleet(self._folder) as fleet,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        ):
            if self._given.engines:
                engines = await replicas.look(session, self._given.engines)
            else:
                _say(f"starting {self._device.replicas} engines ({self._device.kind}) …")
                engines = await replicas.start(fleet, session, self._device, self._folder)
            _say(f"engines: {', '.join(engines.urls)}, KV tokens {engines.capacities}")
            if self._given.simulate:
                preset = self._device.preset
                self.host = await measure_host(session, engines.urls[0], engines.model, preset)
                step, call = self.host.step_s * 1e3, self.host.call_s * 1e3
                _say(f"the host takes {step:.1f} ms a step and {call:.1f} ms a call")
            for seed in self._given.seeds:
                for target in self._given.targets:
                    await self._one(target, seed, engines)
                    fleet.check()

    async def _one(self, target: Target, seed: int, engines: Engines) -> None:
        sessions = work.sessions(self._shape, seed)
        at_a_time = self._given.at_a_time
        result = await perform(target, sessions, seed, at_a_time, engines, self._folder)
        self.results.append(result)
        row, details = result.row, result.details
        _say(
            f"seed {seed} {target.name}: {row['makespan_s']:.1f} s, hit rate {row['hit_rate']}, "
            f"call p99 {details['call_s']['p99']:.1f} s, {details['failed']} failed"
        )
        if details["failed"]:
            raise DemoError(
                f"{details['failed']} programs failed at {target.name}: {details['first_failure']}"
            )
        if self._given.simulate:
            machines = self._machines(engines)
            simulated = simulate(target, sessions, seed, at_a_time, machines, self.host)
            if simulated is not None:
                self.simulated.append(simulated)
            if seed not in self.endless:
                self.endless[seed] = endless_memory(sessions, at_a_time, machines, self.host)

    def _machines(self, engines: Engines) -> Machines:
        return Machines(
            preset=self._device.preset,
            replicas=len(engines.urls),
            kv_tokens=engines.capacities[0],
            block_size=engines.block_size,
        )

    def report(self) -> str:
        rows, details = self.rows()
        parts = [table.markdown(rows, details), table.forecasts(details)]
        if self.simulated:
            parts.append(table.against_simulation(rows, self.simulated))
            times = ", ".join(f"{seconds:.0f} s (seed {seed})" for seed, seconds in self.endless.items())
            parts.append(f"With endless memory it would have taken {times}.")
        return "\n\n".join(filter(None, parts))

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return [result.row for result in self.results], [result.details for result in self.results]

    def to_json(self) -> dict[str, Any]:
        rows, details = self.rows()
        return {
            "rows": rows,
            "details": details,
            "simulated": self.simulated,
            "endless_memory_s": self.endless,
            "host": asdict(self.host),
            "command": sys.argv[1:],
        }


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    folder = Path(tempfile.mkdtemp(prefix="thunder-engines-"))
    benchmark = Benchmark(given, folder)
    failure = None
    try:
        asyncio.run(benchmark.run())
    except DemoError as wrong:
        failure = str(wrong)
    except KeyboardInterrupt:
        failure = "interrupted"
    if benchmark.results:
        print(benchmark.report())
        if given.json is not None:
            given.json.write_text(json.dumps(benchmark.to_json(), indent=1) + "\n")
    if failure:
        _say(f"benchmarks.engines: {failure}")
    if failure and any(folder.iterdir()):
        _say(f"What all processes said is in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if failure else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
