"""Programs: one agent run each, and which of them is current."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, overload

from opentelemetry.context import Context
from opentelemetry.trace import Span

from thunder_sdk import _config, _context, _process, _tracing, wire
from thunder_sdk._acting import Acting
from thunder_sdk._atomic import Once
from thunder_sdk._decorate import F, decorate
from thunder_sdk._delivery import Patience
from thunder_sdk._dialects import Identity, body_of, headers_of
from thunder_sdk._environment import DockerEnvironment
from thunder_sdk._exceptions import ThunderConfigError, ThunderStateError
from thunder_sdk._handle import Handle
from thunder_sdk._life import Life, checked_outcome, outcome_of
from thunder_sdk._preparation import Environment
from thunder_sdk._resources import Resources
from thunder_sdk._spec import CURRENT, Parent, Spec
from thunder_sdk._waiting import check_delivery, delivered, delivered_async, in_event_loop, insist
from thunder_sdk.wire import EventType


class Program:
    """One agent run. Made by `program`, which owns and ends it, or `attach`, which only takes part in it.

    Entering, activating or first using it opens it; leaving or `close` ends it. If its lease runs out in
    between, it reads ``status == "terminated"`` until its next call opens the next generation.

    Example::

        with thunder.program("fix-issue-7") as p:
            answer = client.chat.completions.create(...)
            with p.acting("bash"):
                run(answer)
    """

    def __init__(self, life: Life, parent: Program | None = None) -> None:
        self._life = life
        self._parent = parent
        self._entered = Once()
        self._frame: _context.Frame | None = None
        self._environment = Environment(self)

    # --- what is known without asking --------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id on the wire."""
        return self._life.id

    @property
    def name(self) -> str | None:
        """Its label, for people."""
        return self._life.label

    @property
    def group(self) -> str | None:
        """The group it belongs to, its own or its parent's."""
        return self._life.identity.group

    @property
    def parent_id(self) -> str | None:
        """Id of the program that started it, None for a root."""
        return self._life.identity.parent_id

    @property
    def generation(self) -> int:
        """Which opening of its id this is, as far as known: 1, 2, …"""
        return self._life.last_generation

    @property
    def status(self) -> str:
        """``active``, ``paused`` or ``terminated``, as last heard."""
        return "terminated" if self._life.lapsed else self._life.last_status

    @property
    def outcome(self) -> str | None:
        """``success``, ``error``, ``dropped`` or ``lease_expired``, None while it lives."""
        return self._life.last_outcome if self.status == "terminated" else None

    @property
    def base_url(self) -> str:
        """An OpenAI base URL that names the program: for agents that can be given nothing else."""
        return f"{_process.here().root}/p/{self.id}/v1"

    def headers(self) -> dict[str, str]:
        """The headers that make a call this program's, in all configured dialects; {} once it is closed."""
        config = _process.here().config
        if config.disabled or self._life.closed:
            return {}
        self._life.calling()
        return headers_of(self._life.identity, config.dialects)

    def headers_to(self, url: str) -> dict[str, str]:
        """The headers of a call to `url` if that may see them: the configured server, a ``tag_hosts`` entry.

        {} for everybody else's. With ``traceparent`` where there is a span. For clients that take no
        transport of ours, asked anew for every call.
        """
        if not _process.here().config.tags(*_config.address(url)):
            return {}
        headers = self.headers()
        parent = _tracing.traceparent(self.span)
        if headers and parent is not None:
            headers[wire.TRACEPARENT] = parent
        return headers

    def extra_body(self) -> dict[str, object]:
        """The same for dialects that look into bodies: ``create(…, extra_body=p.extra_body())``."""
        config = _process.here().config
        if config.disabled or self._life.closed:
            return {}
        return body_of(self._life.identity, config.dialects)

    def serialize(self) -> str:
        """A line of ASCII from which `attach` makes a handle in another process."""
        here = self is current_program()
        return Handle(
            identity=self._life.identity,
            name=self.name,
            generation=self.generation,
            traceparent=_tracing.traceparent(self.span) if here else _tracing.traceparent_of(self.span),
        ).dump()

    def env(self) -> dict[str, str]:
        """An environment for `subprocess` in which the SDK finds this program and its server.

        It is this process's environment with ours added; for a container pass
        ``{"THUNDER_PROGRAM_CONTEXT": p.serialize()}`` and its own ``THUNDER_BASE_URL`` instead.
        """
        process = _process.here()
        env = dict(os.environ)
        if not process.config.disabled:
            env[_config.PROGRAM_CONTEXT] = self.serialize()
            if process.sender.root is not None:
                env[_config.BASE_URL] = process.sender.root
            if process.config.api_key is not None:
                env[_config.API_KEY] = process.config.api_key
        return env

    # --- its life ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with self._entering() as asks:
            if asks and not in_event_loop():
                insist(delivered(Patience.EAGER))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error) and not in_event_loop():
            check_delivery(self.id, delivered(), error)

    async def __aenter__(self) -> Self:
        with self._entering() as asks:
            if asks:
                insist(await delivered_async(Patience.EAGER))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error):
            check_delivery(self.id, await delivered_async(), error)

    def close(self, outcome: str = "success") -> None:
        """Ends it with `outcome`: success, error or dropped. The first close wins; handles close nothing.

        Waits at most 2 s for the server to hear of it, not at all inside a running event loop or while the
        server is known to be unreachable. With ``strict`` a failure raises ThunderConnectionError.
        """
        if self._life.end(checked_outcome(outcome), None) and not in_event_loop():
            check_delivery(self.id, delivered(), None)

    def activate(self) -> _context.Activation:
        """A block in which the program is current, without ending it: for threads, callbacks, pools."""
        self._life.require_open("activate")
        return _context.Activation(self)

    def acting(self, tool: str, *, expected: float | None = None) -> Acting:
        """A block, or decorator, in which the program runs `tool`, for about `expected` seconds.

        Yields an object with ``.call_id``. Raises ThunderStateError once the program is closed.
        """
        self._life.require_open("act in")
        return Acting(lambda: self, tool, expected)

    def heartbeat(self) -> None:
        """Says that it lives. The owner's SDK does that by itself while the process runs."""
        if not self._life.closed:
            self.open()
            if self._life.owned:
                self.report(EventType.HEARTBEAT, {})

    @property
    def resources(self) -> Resources:
        """Declares what it holds outside the GPU, like ``p.resources.container(id)``."""
        self.open()
        return Resources(self, self._life.holdings)

    @property
    def environment(self) -> Environment:
        """The sandbox that the server prepares for it: wait for it, then use its container."""
        return self._environment

    def __call__(self, function: F) -> F:
        """As a decorator it is a template: every call of `function` runs in a fresh program."""
        spec = self._life.spec
        if spec is None or self._life.opened or self._life.closed:
            raise ThunderStateError("only a program that is not in use can decorate: use @thunder.program(…)")
        if spec.program_id is not None:
            raise ThunderConfigError(f"a decorator makes many programs; they cannot all be {self.id!r}")
        return decorate(function, lambda: _create(spec.named(getattr(function, "__name__", "program"))))

    def __reduce__(self) -> tuple[Callable[[str], Program], tuple[str]]:
        return attach, (self.serialize(),)

    def __repr__(self) -> str:
        label = "" if self.name is None else f" {self.name!r}"
        return f"<Program {self.id}{label} {self._life.last_status}>"

    # --- for the rest of the SDK -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it has been closed here."""
        return self._life.closed

    @property
    def span(self) -> Span | None:
        """Its own span, or its owner's in another process."""
        return self._life.span

    @property
    def wants_environment(self) -> bool:
        """Whether it was opened with an environment, as far as this process knows."""
        spec = self._life.spec
        return spec is None or spec.environment is not None

    def open(self) -> None:
        """Opens it unless it is; ThunderStateError once it is closed."""
        self._life.open(self._span_parent())

    def report(self, kind: EventType, payload: Mapping[str, object]) -> None:
        """Queues an event; nothing after the end."""
        self._life.report(kind, payload)

    def act(self, tool: str, call_id: str, expected: float | None) -> None:
        """Reports that `tool` begins."""
        self.open()
        if self._life.lapsed and _process.here().config.strict:
            raise ThunderStateError(
                f"the lease of program {self.id} has run out; its next call opens it again"
            )
        started: dict[str, object] = {"call_id": call_id, "tool": tool}
        if expected is not None:
            started["expected_s"] = expected
        self.report(EventType.ACTING_STARTED, started)

    def _span_parent(self) -> Context | None:
        """Where its span hangs: below the span of the moment, unless that is another program's."""
        current = current_program()
        if self._parent is None:
            return None if current is None else Context()
        return _tracing.context_for(self._parent.span, always=self._parent is not current)

    @contextmanager
    def _entering(self) -> Iterator[bool]:
        """Opens it, and at the end makes it current; yields whether the server's answer is to be waited for.

        Whoever interrupts that leaves nothing open behind, since the block will not run.
        """
        self._life.require_open("enter")
        if not self._entered.claim():
            raise ThunderStateError(
                f"program {self.id} has been entered already; make a new one for a new run"
            )
        try:
            self.open()
            config = _process.here().config
            yield config.strict and config.control and self._life.owned
            self._frame = _context.push(self, self.span)
        except BaseException as error:
            self._life.end("dropped", error)
            raise

    def _leave(self, error: BaseException | None) -> bool:
        """Makes it no longer current and ends it; whether its delivery is to be waited for."""
        if self._frame is not None:
            _context.pop(self._frame)
        return self._life.end(outcome_of(error), error)


@overload
def program(name: F, /) -> F: ...


@overload
def program(
    name: str | None = None,
    *,
    program_id: str | None = None,
    parent: Program | str | Parent | None = CURRENT,
    group: str | None = None,
    priority: int | None = None,
    tags: Iterable[str] = (),
    metadata: Mapping[str, object] | None = None,
    expected_context: int | None = None,
    lease: float | None = None,
    max_wait: float | None = None,
    environment: DockerEnvironment | None = None,
) -> Program: ...


def program(
    name: Any = None,
    *,
    program_id: str | None = None,
    parent: Program | str | Parent | None = CURRENT,
    group: str | None = None,
    priority: int | None = None,
    tags: Iterable[str] = (),
    metadata: Mapping[str, object] | None = None,
    expected_context: int | None = None,
    lease: float | None = None,
    max_wait: float | None = None,
    environment: DockerEnvironment | None = None,
) -> Any:
    """A new program: ``with`` and ``async with`` run it, as a decorator it makes one for every call.

    Args:
        name: a label of at most 200 characters. A function means the bare decorator, ``@thunder.program``.
        program_id: its id, for one that others know already; else one is made. The grammar: 1 to 200 of the
            characters ``A-Z a-z 0-9 . _ : @ + = -``.
        parent: the program (or id of one) that starts it; None for a root. The current program by default.
        group: programs that belong together. Inherited from the parent, like `priority`.
        priority: higher is served earlier; the server takes 0 if nothing is said.
        tags, metadata: for people and reports; metadata must be a JSON object.
        expected_context: tokens that its context will grow to, as far as can be told.
        lease: seconds it may be silent before it counts as dead; from `init` by default.
        max_wait: seconds a call may queue before the server refuses it.
        environment: a sandbox that the server prepares while the program waits for its turn.

    Raises:
        ThunderConfigError: an argument is wrong.

    Example::

        @thunder.program("solve", group="eval-1")
        async def solve(task): ...
    """
    if not isinstance(parent, Program | str | Parent | None):
        raise ThunderConfigError(f"parent must be a program, an id, CURRENT or None, not {parent!r}")
    spec = Spec.checked(
        name=None if callable(name) else name,
        program_id=program_id,
        parent=parent,
        group=group,
        priority=priority,
        tags=tags,
        metadata=metadata,
        expected_context=expected_context,
        lease=lease,
        max_wait=max_wait,
        environment=environment,
    )
    made = _create(spec)
    return made(name) if callable(name) else made


def _create(spec: Spec) -> Program:
    """The program that `spec` describes, here and now."""
    parent = current_program() if isinstance(spec.parent, Parent) else spec.parent
    above = parent._life.identity if isinstance(parent, Program) else Identity(id="", parent_id=parent)
    identity = Identity(
        id=spec.program_id or f"prg_{_process.here().sources.new_hex()}",
        parent_id=above.parent_id if above.id in ("", spec.program_id) else above.id,
        group=above.group if spec.group is None else spec.group,
        priority=above.priority if spec.priority is None else spec.priority,
        max_wait=spec.max_wait,
    )
    return Program(Life(identity, spec.name, spec, None), parent if isinstance(parent, Program) else None)


def attach(context: str) -> Program:
    """A handle on the program that `Program.serialize` put into `context`. It takes part but ends nothing.

    Raises ThunderConfigError if `context` is anything else.

    Example::

        with thunder.attach(job["context"]) as p:
            ...
    """
    handle = Handle.load(context)
    life = Life(handle.identity, handle.name, None, _tracing.remote_span(handle.traceparent))
    life.last_generation = handle.generation
    return Program(life)


def current_program() -> Program | None:
    """The innermost open program of this context, else that of ``THUNDER_PROGRAM_CONTEXT``, else None."""
    return _context.innermost_open() or _context.ambient(attach)


def acting(tool: str, *, expected: float | None = None) -> Acting:
    """`Program.acting` on whatever program is current when the block begins; without one it does nothing.

    Example::

        @thunder.acting("browser")
        async def open_page(url): ...
    """
    return Acting(current_program, tool, expected)
