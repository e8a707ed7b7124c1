"""Making a program's sandbox, a container with its set-up commands run, and pausing it while it is idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from thunder_sdk import wire
from thunder_sdk.reclaim import objects
from thunder_sdk.reclaim.endings import Absent, Ending, Failed
from thunder_sdk.reclaim.engine import Engine
from thunder_sdk.wire import ResourceKind

Lend = Callable[[float], AbstractContextManager[Engine]]

GENERATION_LABEL: Final = "thunder.generation"
_WATCHED: Final = 0.2  # s for which a sandbox has to run to count as ready
_TAIL: Final = 2_000  # characters of a command's output that an error quotes

# What `limits` may hold, and what the engine calls it.
LIMITS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "cpus": lambda cpus: {"nano_cpus": int(float(cpus) * 1e9)},
    "memory": lambda size: {"mem_limit": size},
    "memory_swap": lambda size: {"memswap_limit": size},
    "pids": lambda count: {"pids_limit": int(count)},
    "shm_size": lambda size: {"shm_size": size},
}


class Preparation:
    """One environment in the making. `run` blocks in a thread; `stop` ends it from any other."""

    def __init__(self, task: wire.Task, lend: Lend, patience: float) -> None:
        self._task = task
        self._spec = task["environment"]
        self._name = task["name"]
        self._lend = lend
        self._patience = patience
        self._stopped: str | None = None

    def run(self) -> wire.TaskResult:
        """Ready, with the container's id; or an `Ending` is raised and no container left."""
        started = time.monotonic()
        # Commands may be silent, and pulls slow, for as long as the whole may take; all else answers soon.
        with (
            self._lend(self._patience) as engine,
            self._lend(self._task["timeout_s"]) as patient,
        ):
            self._check()
            self._replace(engine)
            try:
                self._pull(engine, patient)
                container = self._create(engine)
                with engine.answering(self._what):
                    engine.api.start(container)
                for number, command in enumerate(self._list("setup"), 1):
                    self._check()
                    try:
                        self._set_up(patient, container, number, command)
                    except Failed:
                        self._require_running(engine, container)  # else that is the reason
                        raise
                self._require_staying(engine, container)
                self._check()
            except Ending as ending:
                self._discard(engine)
                self._check()
                if isinstance(ending, Absent):  # a network, say, or the container itself: somebody removed it
                    missing = getattr(ending.__cause__, "explanation", None) or ending
                    raise Failed(f"{self._what}: {missing}", retryable=False) from ending
                raise
        return wire.TaskResult(
            task=self._task["task"],
            end=wire.WorkEnd.DONE,
            container_id=container,
            seconds=time.monotonic() - started,
        )

    def stop(self, why: str) -> None:
        """Has `run` raise `Failed` soon: removing the container ends whatever runs in it. Blocks."""
        self._stopped = why
        with suppress(Ending), self._lend(self._patience) as engine:
            self._discard(engine)

    # --- steps -------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"environment {self._spec['image']}"

    def _list(self, field: str) -> list[str]:
        value = self._spec.get(field)
        return [str(entry) for entry in value] if isinstance(value, list) else []

    def _check(self) -> None:
        if self._stopped is not None:
            raise Failed(self._stopped, retryable=False)

    def _replace(self, engine: Engine) -> None:
        """Makes room for a new try: what an earlier one left half done has our name and our label."""
        with suppress(Absent):
            found = objects.look(engine, ResourceKind.CONTAINER, self._name)
            labels = found.details["Config"]["Labels"] or {}
            if labels.get(wire.PROGRAM_LABEL) != self._task["program_id"]:
                raise Failed(f"a container {self._name} is there that is not the program's", retryable=False)
            objects.remove_container(engine, found)

    def _discard(self, engine: Engine) -> None:
        with suppress(Ending):
            self._replace(engine)

    def _pull(self, engine: Engine, patient: Engine) -> None:
        image = str(self._spec["image"])
        try:
            with engine.answering(f"image {image}"):
                engine.api.inspect_image(image)
        except Absent:
            tagged = "@" in image or ":" in image.rpartition("/")[2]
            with patient.answering(f"image {image} cannot be pulled"):
                for line in patient.api.pull(
                    image, tag=None if tagged else "latest", stream=True, decode=True
                ):
                    self._check()
                    if "error" in line:
                        raise Failed(
                            f"image {image} cannot be pulled: {line['error']}", retryable=True
                        ) from None

    def _create(self, engine: Engine) -> str:
        from docker.errors import DockerException

        spec, api = self._spec, engine.api
        options: dict[str, Any] = {"binds": self._list("mounts") or None, "network_mode": spec.get("network")}
        limits = spec.get("limits")
        for name, value in (limits if isinstance(limits, dict) else {}).items():
            options |= _limit(name, value)
        try:
            host_config = api.create_host_config(**options)
        except (DockerException, TypeError, ValueError) as wrong:  # the package's own opinion of a value
            raise Failed(f"{self._what}: {wrong}", retryable=False) from wrong
        with engine.answering(self._what):
            created = api.create_container(
                spec["image"],
                command=self._list("command") or None,
                name=self._name,
                environment=spec.get("env"),
                working_dir=spec.get("workdir"),
                stdin_open=True,  # a shell, or any other command that reads its input, stays
                labels={
                    wire.PROGRAM_LABEL: self._task["program_id"],
                    GENERATION_LABEL: str(self._task["generation"]),
                },
                host_config=host_config,
            )
        return str(created["Id"])

    def _set_up(self, engine: Engine, container: str, number: int, command: str) -> None:
        from docker.utils.socket import frames_iter

        api, what = engine.api, f"{self._what}: setup command {number}, {command!r}"
        self._require_running(engine, container)
        with engine.answering(what):
            running = api.exec_create(container, ["/bin/sh", "-c", command])["Id"]
            output = api.exec_start(running, socket=True)
            tail = ""
            try:
                for _, chunk in frames_iter(output, tty=False):
                    tail = (tail + chunk.decode(errors="replace"))[-_TAIL:]
            finally:
                # Which the package leaves to the garbage collector.
                getattr(output, "_response", output).close()
            code = api.exec_inspect(running)["ExitCode"]
        if code != 0:
            raise Failed(f"{what}, ended with {code}: {tail.strip() or 'it wrote nothing'}", retryable=False)

    def _require_staying(self, engine: Engine, container: str) -> None:
        """A command that fails does so soon after it has begun."""
        watched_until = time.monotonic() + _WATCHED
        while True:
            self._require_running(engine, container)
            if time.monotonic() > watched_until:
                return
            time.sleep(_WATCHED / 4)

    def _require_running(self, engine: Engine, container: str) -> None:
        with engine.answering(self._what):
            state = engine.api.inspect_container(container)["State"]
            if state["Running"]:
                return
            tail = engine.api.logs(container, tail=20).decode(errors="replace")[-_TAIL:].strip()
        raise Failed(
            f"{self._what}: its command ended with {state['ExitCode']}: {tail or 'it wrote nothing'}. "
            "A sandbox needs a command that stays, like ['sleep', 'infinity']",
            retryable=False,
        )


def _limit(name: str, value: object) -> dict[str, Any]:
    if name not in LIMITS:
        raise Failed(f"limits: {name!r} is unknown; there are {', '.join(LIMITS)}", retryable=False)
    try:
        return LIMITS[name](value)
    except (TypeError, ValueError, OverflowError):
        raise Failed(f"limits: {name} cannot be {value!r}", retryable=False) from None


def hibernate(engine: Engine, container: str) -> None:
    """Pauses a container; one that is paused already is left so."""
    _change(engine, container, engine.api.pause, "already paused")


def wake(engine: Engine, container: str) -> None:
    """Has a paused container go on; one that runs is left so."""
    _change(engine, container, engine.api.unpause, "is not paused")


def _change(engine: Engine, container: str, change: Callable[[str], None], needless: str) -> None:
    try:
        with engine.answering(f"container {container}"):
            change(container)
    except Failed as failed:
        if needless not in str(failed):
            raise
