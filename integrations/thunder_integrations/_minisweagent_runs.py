"""Runs of agents of mini-swe-agent, each with its program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any, Final

import thunder_sdk as thunder

Options = Mapping[str, Any] | thunder.Program | None
"""What `thunder_sdk.program` takes, for a program of each run; or one of yours that the runs are part of."""

_SUBMITTED: Final = "Submitted"
_TOOL: Final = "bash"


class Run:
    """One run of an agent, its program, and how far it has got.

    The agent's list of messages tells how a run ends: the last one then has the role ``exit`` and the status.
    """

    def __init__(self, program: thunder.Program, *, owned: bool) -> None:
        self.program = program
        self._owned = owned
        self._ended = False
        self._messages: list[dict[str, Any]] = []
        self._acting: AbstractContextManager[object] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, or the program that it was part of."""
        return self._ended or (not self._owned and self.program.status == "terminated")

    @property
    def asked_once(self) -> bool:
        """Whether a model has been asked in it."""
        return bool(self._messages)

    def activate(self) -> AbstractContextManager[object]:
        """Calls within are the program's."""
        try:
            return self.program.activate()
        except thunder.ThunderStateError:  # its owner has closed it
            return nullcontext()

    def acting(self) -> AbstractContextManager[object]:
        """A tool runs within."""
        try:
            return self.program.acting(_TOOL)
        except thunder.ThunderStateError:
            return nullcontext()

    def asked(self, messages: list[dict[str, Any]]) -> None:
        """The model is to think; whatever ran has ended."""
        self.acted()
        self._messages = messages

    def acts(self) -> None:
        """The model's actions begin to run."""
        self._acting = self.acting()
        self._acting.__enter__()

    def acted(self) -> None:
        """They have ended."""
        acting, self._acting = self._acting, None
        if acting is not None:
            acting.__exit__(None, None, None)

    def settle(self) -> None:
        """Ends the run if the agent's messages say so."""
        last = self._messages[-1] if self._messages else {}
        if last.get("role") == "exit":
            self.close(outcome_of(last.get("extra", {})))

    def close(self, outcome: str) -> None:
        """Ends the run, and the program unless that is somebody else's."""
        self.acted()
        self._ended = True
        if self._owned:
            self.program.close(outcome)


class Runs:
    """The runs of one agent, one after the other, and what its model and environment share."""

    def __init__(self, program: Options) -> None:
        self.spans_per_action = False
        self._program = program
        self._container: tuple[str, bool] | None = None
        self._run: Run | None = None

    def current(self) -> Run:
        """The run that is under way, else a new one."""
        if self._run is None or self._run.over:
            self._run = self._new()
            self._declare()
        return self._run

    def _new(self) -> Run:
        """In the program that was given or is current here, else in one of its own.

        A program that is current in the whole process, as below ``thunder run``, may have many runs: each is
        a child of it then.
        """
        if isinstance(self._program, thunder.Program):
            return Run(self._program, owned=False)
        current = thunder.current_program()
        if current is not None and current is not Context().run(thunder.current_program):
            return Run(current, owned=False)
        return Run(thunder.program(**(self._program or {})), owned=True)

    @property
    def under_way(self) -> bool:
        """Whether a model has been asked in the run of the moment."""
        return self._run is not None and not self._run.over and self._run.asked_once

    def hold(self, container: str | None, keep: bool) -> None:
        """The runs use this container."""
        if container:
            self._container = container, keep
            if self._run is not None:
                self._declare()

    def _declare(self) -> None:
        if self._container is not None and self._run is not None:
            container, keep = self._container
            self._run.program.resources.container(container, keep=keep)

    def settle(self) -> None:
        """Ends the run that is over."""
        if self._run is not None:
            self._run.settle()

    def abandon(self) -> None:
        """Nobody will go on with it."""
        self.settle()
        if self._run is not None and not self._run.over:
            self._run.close("dropped")


def outcome_of(extra: Mapping[str, Any]) -> str:
    """What a run's exit status means for its program."""
    return "success" if extra.get("exit_status") == _SUBMITTED else "error"
