"""What one program holds outside the GPU, as far as this process knows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from thunder_sdk.reclaim.ports import Lease
from thunder_sdk.reclaim.tasks import Site
from thunder_sdk.wire import Claim, EventType, ResourceKind, Task, Work

RESOURCE_ROOT: Final = "THUNDER_RESOURCE_ROOT"
ORDER: Final = (
    ResourceKind.PROCESS,
    ResourceKind.CONTAINER,
    ResourceKind.NETWORK,
    ResourceKind.VOLUME,
    ResourceKind.IMAGE,
    ResourceKind.DIRECTORY,
)
"""In which removing goes: what uses something before what it uses. Ports are not removed but given back."""
_TIMEOUT: Final = 10.0  # s for one removal

Key = tuple[str, str, str]
"""Kind, ref and host."""


class Holdings:
    """What was declared here and not released, and the ports leased here."""

    def __init__(self) -> None:
        self._declared: dict[Key, bool] = {}  # whether it is to be kept
        self._ports: list[Lease] = []
        self.gone: list[Key] = []  # removed here, while no server could do it

    def __bool__(self) -> bool:
        """Whether anything is declared that was not released."""
        return bool(self._declared)

    def note(self, kind: EventType, payload: Mapping[str, object]) -> None:
        """Takes down an event about a resource; others are none of ours."""
        if kind in (EventType.RESOURCE_DECLARED, EventType.RESOURCE_RELEASED):
            key = (str(payload["kind"]), str(payload["ref"]), str(payload["host"]))
            if kind is EventType.RESOURCE_DECLARED:
                self._declared[key] = bool(payload["keep"])
            else:
                self._declared.pop(key, None)

    def take_port(self, lease: Lease) -> None:
        """Keeps a lease until `give_ports_back`."""
        self._ports.append(lease)

    def give_ports_back(self) -> None:
        """At the program's end."""
        while self._ports:
            self._ports.pop().release()

    def tasks(self, site: Site, claim: Claim) -> list[Task]:
        """What is to be removed at `site`, in a safe order."""
        mine = [key for key, keep in self._declared.items() if not keep and key[2] in site.hosts]
        return [
            Task(
                task=f"{kind} {ref}",
                do=Work.RECLAIM,
                host=host,
                now=claim["ended_at"],
                timeout_s=_TIMEOUT,
                attempt=1,
                program_id=claim["program_id"],
                generation=1,
                kind=kind,
                ref=ref,
                claims=[claim],
            )
            for wanted in ORDER
            for kind, ref, host in mine
            if kind == wanted
        ]


def local_site(environ: Mapping[str, str] = os.environ) -> Site:
    """This machine, the engine in use, and ``THUNDER_RESOURCE_ROOT``, else the temporary directory."""
    roots = [Path(root) for root in environ.get(RESOURCE_ROOT, "").split(os.pathsep) if root]
    return Site.here(environ.get("DOCKER_HOST"), roots=roots)
