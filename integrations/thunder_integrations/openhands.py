"""OpenHands SDK: every conversation is a program, here or on an agent server.

::

    from thunder_integrations.openhands import conversation

    with conversation(agent, workspace="/src/project", program={"group": "eval-1"}) as chat:
        chat.send_message("Fix the failing test.")
        chat.run()

OpenHands says with every LLM call which conversation it belongs to (``x-litellm-session-id``), and the server
reads that; so the program simply has the conversation's id, wherever the call is made. What is added is what
no call says: tools as acting, forks and sub-agents as children, the workspace's container, and the end.
"""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

import thunder_sdk as thunder
from thunder_integrations._actions import Actions

_PROGRAM_ID: Final = "X-Thunder-Program-Id"
_PARENT_ID: Final = "X-Thunder-Parent-Id"
_SESSION_ID: Final = "X-Session-ID"

_STOPPED: Final = frozenset({"finished", "error", "stuck", "paused"})
_OUTCOMES: Final = {"finished": "success", "idle": "success", "error": "error", "stuck": "error"}
"""By a conversation's execution status at its end; any other one means that it was broken off."""
_LONGEST: Final = 86_400.0  # s that are worth telling


def conversation(
    agent: Any,
    *,
    workspace: Any = "workspace/project",
    program: Mapping[str, Any] | None = None,
    **options: Any,
) -> Conversation:
    """What ``openhands.sdk.Conversation`` makes, as a program that lasts until `Conversation.close`.

    Args:
        agent: an OpenHands agent.
        workspace: as OpenHands takes it; or a function that makes it. Then it is the program's: cleaned up
            with the conversation, and its container reclaimed should this process die.
        program: what `thunder_sdk.program` takes, but the id, which is the conversation's. The current
            program is the parent.
        options: whatever else OpenHands takes, like ``conversation_id``, ``callbacks``, ``visualizer``.

    Returns:
        a `Conversation`, which is used like OpenHands' own, and in a ``with`` block.
    """
    from openhands.sdk import Conversation as Factory
    from openhands.sdk.conversation.visualizer import DefaultConversationVisualizer
    from openhands.sdk.workspace import RemoteWorkspace

    conversation_id = options.pop("conversation_id", None) or uuid.uuid4()
    own = thunder.program(**{**(program or {}), "program_id": str(conversation_id)})
    own.heartbeat()  # opens it: what is made from now on is the program's
    try:
        place = workspace() if callable(workspace) else workspace
        made = None if place is workspace else place
        family = Family(own, options.pop("visualizer", DefaultConversationVisualizer))
        inner = Factory(
            _told(agent, own, remote=isinstance(place, RemoteWorkspace)),
            **{**options, "workspace": place, "conversation_id": conversation_id},
            visualizer=family.visualizer,
        )
    except BaseException as error:
        own.close("error" if isinstance(error, Exception) else "dropped")
        raise
    container = getattr(place, "_container_id", None)
    if container:
        own.resources.container(container, keep=made is None)
    return Conversation(inner, family, own, made)


class Conversation:
    """An OpenHands conversation and its program; whatever is not here is the conversation's own.

    ``program`` is its program, ``inner`` the conversation as OpenHands made it.
    """

    def __init__(self, inner: Any, family: Family, program: thunder.Program, workspace: Any = None) -> None:
        self.inner = inner
        self.program = program
        self._family = family
        self._workspace = workspace
        self._status = "idle"
        self._closed = False
        atexit.register(self.close)  # as OpenHands does with the conversation itself

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Runs the agent in the program."""
        self._status = "error"
        with self._in_program():
            self.inner.run(*args, **kwargs)
        self._status = self._current_status()

    async def arun(self, *args: Any, **kwargs: Any) -> None:
        """Runs the agent in the program."""
        self._status = "error"
        with self._in_program():
            await self.inner.arun(*args, **kwargs)
        self._status = self._current_status()

    def ask_agent(self, *args: Any, **kwargs: Any) -> Any:
        """Asks in the program."""
        with self._in_program():
            return self.inner.ask_agent(*args, **kwargs)

    def generate_title(self, *args: Any, **kwargs: Any) -> Any:
        """Asks in the program."""
        with self._in_program():
            return self.inner.generate_title(*args, **kwargs)

    def condense(self) -> None:
        """Condenses in the program."""
        with self._in_program():
            self.inner.condense()

    def execute_tool(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a tool in the program."""
        with self._in_program():
            return self.inner.execute_tool(*args, **kwargs)

    def fork(self, **options: Any) -> Conversation:
        """A fork is a child: its context grows apart from this one's. It is closed for itself."""
        child_id = options.pop("conversation_id", None) or uuid.uuid4()
        watch = self._family.child(str(child_id), parent=self.program)
        fork = self.inner.fork(conversation_id=child_id, **options)
        if not isinstance(fork._visualizer, self._family.visualizer):
            fork = _reattached(fork, self._family.visualizer)
        return Conversation(fork, self._family, watch.program)

    def close(self) -> None:
        """Closes the conversation, then the program with what its status means."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        outcome = self._outcome(error)
        try:
            self.inner.close()
            if self._workspace is not None and hasattr(self._workspace, "cleanup"):
                self._workspace.cleanup()
        finally:
            self._family.close(self.program, outcome)

    def _outcome(self, error: BaseException | None) -> str:
        if error is not None:
            return "error" if isinstance(error, Exception) else "dropped"
        if self._status == "running":  # a run that was not waited for, on an agent server
            self._status = self._current_status()
        return _OUTCOMES.get(self._status, "dropped")

    def _current_status(self) -> str:
        """Asked for right after a run: later an agent server may be gone, and asking it would take long."""
        return str(self.inner.state.execution_status.value)

    def _in_program(self) -> AbstractContextManager[object]:
        return nullcontext() if self._closed else self.program.activate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Family:
    """A conversation, its forks and its sub-agents: a program each, told of by the visualizers they carry.

    OpenHands makes a visualizer for every sub-agent from its parent's, and one for a fork of the parent's
    class: the one thing of a conversation that they get. ``visualizer`` is such a class, around what the user
    wants to see.
    """

    def __init__(self, root: thunder.Program, shown: Any) -> None:
        self._root = root
        self._watches = {root.id: Watch(lambda: root)}
        self.visualizer = _visualizer_class(self, shown)

    def child(
        self, conversation_id: str, *, parent: thunder.Program | None = None, name: str | None = None
    ) -> Watch:
        """The watch over a conversation that another one started."""

        def opened() -> thunder.Program:
            return thunder.program(name, program_id=conversation_id, parent=parent or self._root)

        return self._watches.get(conversation_id) or self._watches.setdefault(conversation_id, Watch(opened))

    def settle(self) -> None:
        """Ends the sub-agents that have stopped."""
        for watch in list(self._watches.values()):
            if watch.state is not None and watch.state.execution_status.value in _STOPPED:
                watch.close(_OUTCOMES.get(watch.state.execution_status.value, "dropped"))

    def close(self, program: thunder.Program, outcome: str) -> None:
        """Ends a conversation's program, and with the first one's those of the sub-agents."""
        self._watches[program.id].close(outcome)
        if program is self._root:
            for watch in list(self._watches.values()):
                if watch.state is not None:
                    watch.close("dropped")


class Watch:
    """Turns the events of one conversation into acting. ``state`` is a sub-agent's: nobody tells its end."""

    def __init__(self, opened: Callable[[], thunder.Program]) -> None:
        self.state: Any = None
        self._opened = opened
        self._begin()

    def _begin(self) -> None:
        self.program = self._opened()
        self._tools = Actions(program=self.program)

    def told(self, event: Any) -> None:
        """An event of the conversation, in whichever thread it comes."""
        from openhands.sdk.event import ActionEvent, MessageEvent, ObservationBaseEvent

        if isinstance(event, ActionEvent) and event.action is not None:
            self._tools.begin(event.tool_call_id, event.tool_name, expected=_expected(event.action))
        elif isinstance(event, ObservationBaseEvent):
            self._tools.end(event.tool_call_id, _failure(event))
        elif self.state is not None and isinstance(event, MessageEvent) and event.source == "user":
            self._resume()

    def _resume(self) -> None:
        """A sub-agent gets a task, in the thread that it will run in, which is its parent's so far."""
        if self.program.outcome is not None:
            self._begin()
        self.program.activate().__enter__()

    def close(self, outcome: str) -> None:
        """Ends the program."""
        self._tools.end_all()
        self.program.close(outcome)


def _visualizer_class(family: Family, shown: Any) -> Any:
    """Visualizers that watch for `family` and hand on to `shown`, which is one, a class of them, or None."""
    from openhands.sdk.conversation.visualizer import ConversationVisualizerBase
    from openhands.sdk.event import ObservationEvent

    class Visualizer(ConversationVisualizerBase):
        def __init__(self, shown: Any = shown, name: str | None = None, parent: Any = None) -> None:
            super().__init__()
            self._shown = shown() if isinstance(shown, type) else shown
            self._name = getattr(self._shown, "_name", None) or name
            self._parent = parent
            self._watch: Watch | None = None

        @property
        def watch(self) -> Watch:
            if self._watch is None:
                state = self._state
                above = None if self._parent is None else self._parent.watch.program
                self._watch = family.child(str(state.id), parent=above, name=self._name)
                if self._parent is not None:
                    self._watch.state = state
            return self._watch

        def on_event(self, event: Any) -> None:
            self.watch.told(event)
            if self._shown is not None:
                if self._shown._state is None:
                    self._shown.initialize(self._state)
                self._shown.on_event(event)
            if isinstance(event, ObservationEvent):
                family.settle()

        def create_sub_visualizer(self, agent_id: str) -> Any:
            below = None if self._shown is None else self._shown.create_sub_visualizer(agent_id)
            return Visualizer(below, agent_id, self)

    return Visualizer


def _told(agent: Any, program: thunder.Program, *, remote: bool) -> Any:
    """`agent`, its models saying what the program's calls have in common, where they call our server.

    Not the id: that is the conversation's, and sub-agents, which copy these models, have ones of their own.
    On an agent server those are not seen, so their calls say who is above them; that the conversation's own
    calls then say the same is nothing to the server.
    """
    update: dict[str, Any] = {"llm": _with_headers(agent.llm, program, remote)}
    condenser: Any = getattr(agent, "condenser", None)
    if getattr(condenser, "llm", None) is not None:
        update["condenser"] = condenser.model_copy(
            update={"llm": _with_headers(condenser.llm, program, remote)}
        )
    return agent.model_copy(update=update)


def _with_headers(llm: Any, program: thunder.Program, remote: bool) -> Any:
    ours = program.headers_to(str(llm.base_url or ""))
    if _PROGRAM_ID in ours:
        ours = {
            name: value for name, value in ours.items() if name not in (_PROGRAM_ID, _SESSION_ID, _PARENT_ID)
        }
        if remote:
            ours[_PARENT_ID] = program.id
    given = llm.extra_headers or {}
    present = {name.lower() for name in given}
    added = {name: value for name, value in ours.items() if name.lower() not in present}
    return llm.model_copy(update={"extra_headers": {**given, **added}}) if added else llm


def _reattached(fork: Any, visualizer: Any) -> Any:
    """A fork on an agent server is handed out unwatched: the same conversation, watched."""
    kept, fork.delete_on_close = fork.delete_on_close, False
    fork.close()
    return type(fork)(
        agent=fork.agent,
        workspace=fork.workspace,
        conversation_id=fork.id,
        visualizer=visualizer,
        max_iteration_per_run=fork.max_iteration_per_run,
        delete_on_close=kept,
    )


def _expected(action: Any) -> float | None:
    """What the model itself allows the tool, in seconds."""
    seconds = getattr(action, "timeout", None)
    return float(seconds) if isinstance(seconds, int | float) and 0 < seconds <= _LONGEST else None


def _failure(event: Any) -> BaseException | None:
    """What went wrong, if that is what the event tells."""
    observation = getattr(event, "observation", None)
    if observation is not None and not observation.is_error:
        return None
    return RuntimeError(
        getattr(event, "error", None) or getattr(event, "rejection_reason", "the tool failed")
    )
