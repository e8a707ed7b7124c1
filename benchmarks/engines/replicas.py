"""The engines of a run: vLLM that computes, vLLM with a timer, our emulation, or whatever is there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import aiohttp

from thunder_server.demo.engines import read_memory, read_model, root
from thunder_server.demo.fleet import DemoError, Fleet, free_ports
from thunder_server.simulation.time_model import PRESETS, EnginePreset, TimeModel

HERE = Path(__file__).parent
MODEL = "tiny"
VLLM_READY_S = 300.0


class Kind(StrEnum):
    """What stands behind the engines' URLs."""

    COMPUTE = "compute"  # vLLM on this machine's CPU, computing
    TIMER = "timer"  # vLLM, with a timer for a device
    EMULATE = "emulate"  # thunder emulate

    @property
    def block_size(self) -> int:
        """Tokens; vLLM's attention on a CPU takes multiples of 32."""
        return 32 if self is Kind.COMPUTE else 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Engines to start: ``replicas`` of them with ``kv_tokens`` each, as fast as ``preset`` says."""

    kind: Kind
    replicas: int
    kv_tokens: int
    longest: int
    preset: EnginePreset = PRESETS["cpu-small"]
    vllm: str | None = None
    speed: float = 1.0  # of an emulation
    kv_events: bool = False  # vLLM publishes what it caches


@dataclass(frozen=True, slots=True)
class Events:
    """Ports at which an engine publishes what it caches, and tells again what was missed."""

    port: int
    replay: int

    def config(self) -> str:
        """What vLLM is told of them."""
        at, again = (f"tcp://*:{port}" for port in (self.port, self.replay))
        config = {"enable_kv_cache_events": True, "publisher": "zmq"}
        return json.dumps(config | {"endpoint": at, "replay_endpoint": again})


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines that answer. ``capacities`` are tokens, one a replica; so are ``events``, or there are none."""

    urls: tuple[str, ...]
    model: str
    capacities: tuple[int, ...]
    block_size: int
    events: tuple[Events, ...] = ()


def vllm_command(given: str | None) -> Path:
    """The ``vllm`` to start, or a `DemoError` that says how to get one."""
    found = shutil.which(given or "vllm")
    if found is None:
        raise DemoError(
            f"there is no {given or 'vllm'}; install it (benchmarks/engines/README.md says how, on a machine "
            "without a GPU too) and name it by --vllm, or take --engine emulate"
        )
    return Path(found)


async def start(fleet: Fleet, session: aiohttp.ClientSession, device: Device, folder: Path) -> Engines:
    """Start the engines and wait until all of them answer."""
    ports = free_ports(device.replicas)
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
    events: tuple[Events, ...] = ()
    if device.kv_events:
        free = iter(free_ports(2 * device.replicas))
        events = tuple(map(Events, free, free))
    if device.kind is Kind.EMULATE:
        processes = [
            await fleet.thunder(
                f"engine {port}",
                *("emulate", "--port", str(port), "--model", MODEL, "--preset", device.preset.name),
                *("--kv-tokens", str(device.kv_tokens), "--block-size", str(device.kind.block_size)),
                *("--max-model-len", str(device.longest), "--speed", f"{device.speed:g}"),
            )
            for port in ports
        ]
    else:
        vllm = vllm_command(device.vllm)
        model = await _write_model(fleet, vllm, folder / "model")
        environment = _environment(device)
        processes = []
        for number, port in enumerate(ports):
            words = _arguments(device, model, port)
            if events:
                words += ["--kv-events-config", events[number].config()]
            processes.append(await fleet.command(f"vllm {port}", str(vllm), *words, env=environment))
    for process, url in zip(processes, urls, strict=True):
        await fleet.wait_ready(process, f"{url}/v1/models", within_s=VLLM_READY_S)
    return replace(await look(session, urls), events=events)


async def look(session: aiohttp.ClientSession, urls: Sequence[str]) -> Engines:
    """Engines that exist: their model and their memory."""
    model, _ = await read_model(session, urls[0])
    memories = []
    for url in urls:
        memory = await read_memory(session, url)
        if memory is None:
            raise DemoError(f"{url}/metrics does not say how many tokens the KV cache holds; is it a vLLM?")
        memories.append(memory)
    return Engines(
        urls=tuple(root(url) for url in urls),
        model=model,
        capacities=tuple(tokens for tokens, _ in memories),
        block_size=memories[0][1],
    )


async def _write_model(fleet: Fleet, vllm: Path, directory: Path) -> Path:
    """A model to serve, made by vLLM's Python, which has the tokenizers that it takes."""
    python = vllm.parent / "python"
    process = await fleet.command("model", str(python), str(HERE.parent / "tiny_model.py"), str(directory))
    await process.handle.wait()
    fleet.check()
    return directory


def _arguments(device: Device, model: Path, port: int) -> list[str]:
    words = ["serve", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager", "--enable-prefix-caching"]
    block = device.kind.block_size
    words += ["--enable-prompt-tokens-details", "--block-size", str(block)]
    # One block is vLLM's own and never handed out.
    words += ["--num-gpu-blocks-override", str(device.kv_tokens // block + 1)]
    words += ["--max-model-len", str(device.longest), "--max-num-seqs", str(device.preset.max_num_seqs)]
    words += ["--max-num-batched-tokens", str(device.preset.max_num_batched_tokens)]
    if device.kind is Kind.TIMER:
        words += ["--no-async-scheduling", "--distributed-executor-backend", "timer_executor.TimerExecutor"]
    return words


def _environment(device: Device) -> dict[str, str]:
    """One thread a replica, no model hub, and the timer's figures."""
    time: TimeModel = device.preset.time
    return {
        "PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TIMER_BASE_MS": f"{time.base * 1e3:g}",
        "TIMER_PREFILL_US": f"{time.per_prefill_token * 1e6:g}",
        "TIMER_SEQUENCE_US": f"{time.per_sequence * 1e6:g}",
        "TIMER_CONTEXT_NS": f"{time.per_resident_token * 1e9:g}",
    }
