"""LangChain and LangGraph: every outermost run of a graph or chain is a program.

::

    from thunder_integrations import langchain as thunder_langchain

    thunder_langchain.install()
    model = thunder_langchain.wrap(ChatOpenAI(base_url="http://127.0.0.1:8300/v1"))
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

import thunder_sdk as thunder
from thunder_integrations._actions import Actions
from thunder_integrations._runs import Run, innermost

__all__ = ["install", "wrap"]

T = TypeVar("T")


def install(*, expected: Mapping[str, float] | None = None) -> None:
    """From now on every run of LangChain and LangGraph in this process is seen. Twice is harmless.

    Args:
        expected: seconds that a tool usually runs, by its name. A tool may say so itself:
            ``metadata={"expected_s": 40}``.
    """
    _handler.expected.update(expected or {})
    if not _installed:
        register_configure_hook(_hook, inheritable=True)
        _installed.append(True)


def wrap(model: T) -> T:
    """Makes the calls of a `ChatOpenAI`, or a model derived from it, name the current program; returns it.

    Where the model's clients are hidden, pass ``http_client=thunder.http_client()`` and
    ``http_async_client=thunder.async_http_client()`` to it instead, and set ``THUNDER_BASE_URL``.

    Raises:
        TypeError: it has no openai clients.
    """
    clients = [getattr(model, name, None) for name in ("root_client", "root_async_client")]
    if not any(clients):
        raise TypeError(f"wrap takes ChatOpenAI and what derives from it, not {type(model).__name__}")
    for client in filter(None, clients):
        thunder.wrap_openai(client)
    return model


class _Node:
    """One LangChain run: which of our runs it is in, and what it has made current."""

    __slots__ = ("activation", "began", "run", "tools")

    def __init__(self, run: Run | None, *, began: bool = False, tools: Actions | None = None) -> None:
        self.run = run
        self.began = began  # the run begins and ends with it
        self.tools = tools  # where it counts, if it is a tool
        self.activation: Any = None


class Handler(BaseCallbackHandler):
    """The callback handler that `install` attaches to every run; twice is harmless.

    LangChain passes the tree of its runs along, even where contexts are lost; so a call belongs to the
    program of its root. A chain that a tool runs is a child program; one that a graph runs as a node goes on
    in the same program, with the same state. A model called outside of any chain, and a tool,
    belong to the current program if there is one.
    """

    run_inline = True  # in the caller's task and context, where the call goes out

    def __init__(self) -> None:
        self.expected: dict[str, float] = {}
        self._nodes: dict[UUID, _Node] = {}
        self._loose = Actions(expected=self.expected)

    # --- chains and graphs -------------------------------------------------------------------------------

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **more: Any
    ) -> None:
        parent = self._parent(parent_run_id)
        if parent is None or parent.tools is not None:
            run = Run(more.get("name"), self.expected, inside=None if parent is None else parent.run)
            self._nodes[run_id] = _Node(run, began=True)
        else:
            self._nodes[run_id] = _Node(parent.run)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id, error)

    # --- models ------------------------------------------------------------------------------------------

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **more: Any
    ) -> None:
        parent = self._parent(parent_run_id)
        if parent is not None:
            self._enter(run_id, _Node(parent.run))

    on_llm_start = on_chat_model_start

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id, error)

    # --- tools -------------------------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        parent = self._parent(parent_run_id)
        run = innermost() if parent is None else parent.run
        tools = self._loose if run is None or not run.prevails() else run.tools
        self._enter(run_id, _Node(run, tools=tools))
        name = (serialized or {}).get("name") or more.get("name") or "tool"
        tools.begin(run_id, name, expected=(metadata or {}).get("expected_s"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._leave(run_id, error)

    # --- the tree ----------------------------------------------------------------------------------------

    def _parent(self, run_id: UUID | None) -> _Node | None:
        return None if run_id is None else self._nodes.get(run_id)

    def _enter(self, run_id: UUID, node: _Node) -> None:
        """From now until `_leave` this context belongs to the run: the call goes out in it, the tool runs."""
        run = node.run
        if run is not None and run.prevails() and innermost() is not run:
            node.activation = run.activated()
            with suppress(thunder.ThunderStateError):  # it may be over already, for what comes late
                node.activation.__enter__()
        self._nodes[run_id] = node

    def _leave(self, run_id: UUID, error: BaseException | None = None) -> None:
        node = self._nodes.pop(run_id, None)
        if node is None:
            return
        if node.tools is not None:
            node.tools.end(run_id, error)
        if node.activation is not None:
            node.activation.__exit__(None, None, None)
        if node.began and node.run is not None:
            node.run.finish(error)


_handler: Final = Handler()
_hook: Final[ContextVar[Handler | None]] = ContextVar("thunder_langchain", default=_handler)
_installed: Final[list[bool]] = []
