"""What is compared: ways to get from the same agents to the same engines.

==========================  ==========================================================================
``direct``                  no scheduler: program *i* talks to engine *i* mod N
``direct:12``               the same, twelve programs at a time
``thunder:POLICY``          ``thunder serve``, told phases and durations by the SDK; POLICY as in ``thunder
                            simulate``: ``phase``, ``phase:warm``, ``paper``, ``paper:1``, ``cap:6``,
                            ``passthrough``
``thunder:POLICY/inferred`` the same, told nothing but calls that name their program
``thunder:POLICY/released`` the same, but told when a program has ended, as ThunderAgent's clients do
``vllm-router``             vLLM's router, ``consistent_hash`` on the session header
``NAME=URL``                whatever answers there; programs name themselves by ``X-Session-ID``
``NAME=URL,body``           the same, by ``program_id`` in the body, and are released as ThunderAgent's are
==========================  ==========================================================================
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.engines.replicas import Engines
from thunder_sdk import wire
from thunder_server.demo.engines import fetch_json, root
from thunder_server.demo.fleet import READY_WITHIN_S, DemoError, Fleet, free_ports


class Telling(StrEnum):
    """How a target learns of programs."""

    EXPLICIT = "explicit"  # phases, durations and ends, by the SDK
    HEADER = "header"  # X-Session-ID on every call
    BODY = "body"  # program_id in every body, and a release


_SIGNALS = {
    "": Telling.EXPLICIT,
    "explicit": Telling.EXPLICIT,
    "inferred": Telling.HEADER,
    "released": Telling.BODY,
}


class Route(StrEnum):
    """What stands between agents and engines."""

    DIRECT = "direct"
    THUNDER = "thunder"
    VLLM_ROUTER = "vllm-router"
    URL = "url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One contender, by the name that its rows go by. ``at_a_time`` overrules the run's own."""

    name: str
    route: Route
    telling: Telling = Telling.HEADER
    policy: str | None = None
    url: str | None = None
    at_a_time: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """From the command line's word. Raises ``ValueError`` saying what is wrong.

        >>> Target.parse("thunder:cap:6/inferred").policy
        'cap:6'
        >>> Target.parse("mine=http://127.0.0.1:9000/v1").url
        'http://127.0.0.1:9000'
        """
        name, given, url = text.partition("=")
        if given:
            url, _, style = url.partition(",")
            if not name or not url.startswith(("http://", "https://")) or style not in ("", Telling.BODY):
                raise ValueError(f"{text!r}: write NAME=http://HOST:PORT, or that with ,body behind it")
            telling = Telling.BODY if style else Telling.HEADER
            return cls(name=name, route=Route.URL, url=root(url), telling=telling)
        kind, _, rest = text.partition(":")
        if text == Route.VLLM_ROUTER:
            return cls(name=text, route=Route.VLLM_ROUTER)
        if kind == Route.DIRECT and (not rest or (rest.isdecimal() and int(rest))):
            return cls(name=text, route=Route.DIRECT, at_a_time=int(rest) if rest else None)
        if kind == Route.THUNDER:
            policy, _, signals = rest.partition("/")
            if policy and signals in _SIGNALS:
                return cls(name=text, route=Route.THUNDER, policy=policy, telling=_SIGNALS[signals])
        raise ValueError(
            f"{text!r} is no target; there are direct, direct:N, thunder:POLICY, thunder:POLICY/inferred, "
            "thunder:POLICY/released, vllm-router and NAME=URL"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """Where a target's programs send their calls: all to one URL, or each to its own of several."""

    urls: tuple[str, ...]
    server: str | None = None  # a thunder server, whose transitions can be heard

    def url(self, program: int) -> str:
        return self.urls[program % len(self.urls)]


async def open_face(
    fleet: Fleet, session: aiohttp.ClientSession, target: Target, engines: Engines, folder: Path
) -> Face:
    """Start what the target needs, and wait until it is ready. ``folder`` takes its files."""
    match target.route:
        case Route.DIRECT:
            return Face(urls=engines.urls)
        case Route.URL:
            assert target.url is not None
            return Face(urls=(target.url,))
        case Route.VLLM_ROUTER:
            return await _vllm_router(fleet, engines)
        case Route.THUNDER:
            return await _thunder(fleet, session, target, engines, folder)


def policy_flags(policy: str) -> list[str]:
    """Flags of ``thunder serve`` for a policy as ``thunder simulate`` writes it.

    >>> policy_flags("paper:1"), policy_flags("phase:warm")
    (['--policy', 'paper', '--paper-decay', '1'], ['--policy', 'phase', '--keep-warm'])
    """
    name, _, given = policy.partition(":")
    flags = {"cap": ["--cap", given], "paper": ["--paper-decay", given], "phase": ["--keep-warm"]}
    return ["--policy", name, *(flags.get(name, []) if given else [])]


async def _thunder(
    fleet: Fleet, session: aiohttp.ClientSession, target: Target, engines: Engines, folder: Path
) -> Face:
    assert target.policy is not None
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    name = target.name.replace("/", "-")
    settings = folder / f"{name}-{port}.toml"
    settings.write_text(_backends(engines))
    process = await fleet.thunder(
        name, *("serve", "--config", str(settings), "--port", str(port), *policy_flags(target.policy))
    )
    await fleet.wait_ready(process, f"{url}/readyz")
    async with asyncio.timeout(READY_WITHIN_S):
        while not await _knows_all(session, url, len(engines.urls)):
            fleet.check()
            await asyncio.sleep(0.1)
    return Face(urls=(url,), server=url)


def _backends(engines: Engines) -> str:
    """The engines as ``thunder serve`` reads them; what each publishes goes with each.

    >>> from benchmarks.engines.replicas import Events
    >>> urls = ("http://a:1",)
    >>> engines = Engines(urls=urls, model="m", capacities=(1,), block_size=16, events=(Events(5, 6),))
    >>> print(_backends(engines))
    [[backend]]
    url = "http://a:1"
    kv_events = 5
    kv_events_replay = 6
    """
    lines = []
    for url, events in zip_longest(engines.urls, engines.events):
        lines += ["[[backend]]", f'url = "{url}"']
        if events is not None:
            lines += [f"kv_events = {events.port}", f"kv_events_replay = {events.replay}"]
    return "\n".join(lines)


async def _knows_all(session: aiohttp.ClientSession, url: str, expected: int) -> bool:
    """Whether the server knows every engine's capacity."""
    listed: list[dict[str, Any]] = (await fetch_json(session, f"{url}{wire.CONTROL_PREFIX}/backends"))[
        "backends"
    ]
    return sum(bool(one["healthy"] and one["capacity_tokens"]) for one in listed) == expected


async def _vllm_router(fleet: Fleet, engines: Engines) -> Face:
    found = shutil.which("vllm-router")
    if found is None:
        raise DemoError("there is no vllm-router on the PATH: pip install vllm-router")
    port, metrics = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    process = await fleet.command(
        "vllm-router",
        *(found, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)),
        *("--policy", "consistent_hash", "--worker-urls", *engines.urls),
    )
    await fleet.wait_ready(process, f"{url}/health")
    return Face(urls=(url,))
