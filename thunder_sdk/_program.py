"""Programs: one agent run each, and which of them is current."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, overload

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from thunder_sdk import _config, _context, _process, _tracing
from thunder_sdk._acting import Acting
from thunder_sdk._atomic import Once
from thunder_sdk._decorate import F, decorate
from thunder_sdk._dialects import Identity, body_of, headers_of
from thunder_sdk._environment import DockerEnvironment
from thunder_sdk._exceptions import (
    ThunderConfigError,
    ThunderError,
    ThunderStateError,
)
from thunder_sdk._handle import Handle
from thunder_sdk._outbox import Close, Open, Report
from thunder_sdk._resources import Resources
from thunder_sdk._sender import failure_of, logger
from thunder_sdk._spec import CURRENT, Parent, Spec
from thunder_sdk.wire import EventType

ENTER_TIMEOUT: Final = 2.0
CLOSE_TIMEOUT: Final = 2.0
OUTCOMES: Final = ("success", "error", "dropped")
_EXPENDABLE: Final = frozenset({EventType.ACTING_STARTED, EventType.ACTING_FINISHED, EventType.HEARTBEAT})


class Program:
    """One agent run. Made by `program`, which owns and ends it, or `attach`, which only takes part in it.

    Its life is new → open → closed; entering, activating or first using opens it. An open one whose lease has
    run out reads ``status == "terminated"`` until its next call opens the next generation.

    Example::

        with thunder.program("fix-issue-7") as p:
            answer = client.chat.completions.create(...)
            with p.acting("bash"):
                run(answer)
    """

    def __init__(self, identity: Identity, name: str | None, spec: Spec | None, span: Span | None) -> None:
        self._identity = identity
        self._name = name
        self._spec = spec  # None: a handle on somebody else's program
        self._span = span
        self._parent: Program | None = None
        self._generation = 1
        self._status = "active"
        self._outcome: str | None = None
        self._opened, self._entered, self._closed = Once(), Once(), Once()
        self._owner: _process.Epoch | None = None
        self._lease = 0.0
        self._renewed_at = 0.0
        self._frame: _context.Frame | None = None
        self.confirmed_generation: int | None = None

    # --- what is known without asking --------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id on the wire."""
        return self._identity.id

    @property
    def name(self) -> str | None:
        """Its label, for people."""
        return self._name

    @property
    def group(self) -> str | None:
        """The group it belongs to, its own or its parent's."""
        return self._identity.group

    @property
    def parent_id(self) -> str | None:
        """Id of the program that started it, None for a root."""
        return self._identity.parent_id

    @property
    def generation(self) -> int:
        """Which opening of its id this is, as far as known: 1, 2, …"""
        return self._generation

    @property
    def status(self) -> str:
        """``active``, ``paused`` or ``terminated``, as last heard."""
        self._lapsed()
        return self._status

    @property
    def outcome(self) -> str | None:
        """``success``, ``error``, ``dropped`` or ``lease_expired``, None while it lives."""
        self._lapsed()
        return self._outcome

    @property
    def closed(self) -> bool:
        """Whether it has been closed here."""
        return self._closed.done

    @property
    def base_url(self) -> str:
        """An OpenAI base URL that names the program: for agents that can be given nothing else."""
        return f"{_process.here().root}/p/{self.id}/v1"

    def headers(self) -> dict[str, str]:
        """The headers that make a call this program's, in all configured dialects; {} once it is closed."""
        config = _process.here().config
        if config.disabled or self._closed.done:
            return {}
        self.calling()
        return headers_of(self._identity, config.dialects)

    def extra_body(self) -> dict[str, object]:
        """The same for dialects that look into bodies: ``create(…, extra_body=p.extra_body())``."""
        config = _process.here().config
        if config.disabled or self._closed.done:
            return {}
        return body_of(self._identity, config.dialects)

    def serialize(self) -> str:
        """A line of ASCII from which `attach` makes a handle in another process."""
        return Handle(
            identity=self._identity,
            name=self._name,
            generation=self._generation,
            traceparent=self.traceparent()
            if self is current_program()
            else _tracing.traceparent_of(self._span),
        ).dump()

    def env(self) -> dict[str, str]:
        """An environment for `subprocess` in which SDK and clients find this program and its server.

        It is this process's environment with ours added; for a container pass
        ``{"THUNDER_PROGRAM_CONTEXT": p.serialize()}`` instead.
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
        self._enter()
        if self._waits() and not _in_event_loop():
            self._check_entry(_process.here().sender.flush(ENTER_TIMEOUT))
        self._make_current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error) and not _in_event_loop():
            self._check_delivery(self._deliver(), error)

    async def __aenter__(self) -> Self:
        self._enter()
        if self._waits():
            self._check_entry(await _delivered(ENTER_TIMEOUT))
        self._make_current()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave(error):
            self._check_delivery(await _delivered(CLOSE_TIMEOUT), error)

    def close(self, outcome: str = "success") -> None:
        """Ends it with `outcome`: success, error or dropped. The first close wins; handles close nothing.

        Waits at most 2 s for the server to hear of it, not at all inside a running event loop or while the
        server is known to be unreachable. With ``strict`` a failure raises ThunderConnectionError.
        """
        if outcome not in OUTCOMES:
            raise ThunderConfigError(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}")
        if self._end(outcome, None) and not _in_event_loop():
            self._check_delivery(self._deliver(), None)

    def activate(self) -> Activation:
        """A block in which the program is current, without ending it: for threads, callbacks, pools."""
        self._require_open("activate")
        return Activation(self)

    def acting(self, tool: str, *, expected: float | None = None) -> Acting:
        """A block, or decorator, in which the program runs `tool`, for about `expected` seconds.

        Yields an object with ``.call_id``. Raises ThunderStateError once the program is closed.
        """
        self._require_open("acting")
        return Acting(lambda: self, tool, expected)

    def heartbeat(self) -> None:
        """Says that it lives. The owner's SDK does that by itself while the process runs."""
        if not self._closed.done:
            self.open()
            if self._owned():
                self.report(EventType.HEARTBEAT, {})

    @property
    def resources(self) -> Resources:
        """Declares what it holds outside the GPU, like ``p.resources.container(id)``."""
        self.open()
        return Resources(self)

    def __call__(self, function: F) -> F:
        """As a decorator it is a template: every call of `function` runs in a fresh program."""
        if self._spec is None or self._opened.done:
            raise ThunderStateError("only a program that is not in use can decorate: use @thunder.program(…)")
        if self._spec.program_id is not None:
            raise ThunderConfigError("a decorator makes many programs; they cannot all be " + self.id)
        spec = self._spec
        return decorate(function, lambda: create(spec.named(getattr(function, "__name__", "program"))))

    def __reduce__(self) -> tuple[Callable[[str], Program], tuple[str]]:
        return attach, (self.serialize(),)

    def __repr__(self) -> str:
        label = "" if self._name is None else f" {self._name!r}"
        return f"<Program {self.id}{label} {self._status}>"

    # --- for the rest of the SDK -------------------------------------------------------------------------

    def open(self) -> None:
        """Opens it unless it is; ThunderStateError once it is closed."""
        self._require_open("use")
        if self._spec is None or not self._opened.claim():
            return
        process = _process.here()
        self._owner = _process.epoch()
        self._lease = self._spec.lease or process.config.lease
        if not process.config.disabled:
            self._span = _tracing.start_agent(self.id, self._name, self._span_parent())
        self._announce()

    def report(self, kind: EventType, payload: Mapping[str, object]) -> None:
        """Queues an event; nothing after the end."""
        if self._closed.done or self._lapsed():
            return
        process = _process.here()
        self._renewed_at = process.sources.monotonic()
        event = {"type": kind.value, "at": process.sources.wall(), **payload}
        process.put(Report(self, event, expendable=kind in _EXPENDABLE))

    def act(self, tool: str, call_id: str, expected: float | None) -> None:
        """Reports that `tool` begins."""
        self.open()
        if self._lapsed() and _process.here().config.strict:
            raise ThunderStateError(
                f"the lease of program {self.id} has run out; its next call opens it again"
            )
        started: dict[str, object] = {"call_id": call_id, "tool": tool}
        if expected is not None:
            started["expected_s"] = expected
        self.report(EventType.ACTING_STARTED, started)

    def tool_span(self, tool: str, call_id: str) -> Span | None:
        """The span of a tool's run."""
        if _process.here().config.disabled:
            return None
        return _tracing.start_tool(self.id, tool, call_id, _tracing.context_for(self._span))

    def traceparent(self) -> str | None:
        """The W3C header for a call made now."""
        return _tracing.traceparent(self._span)

    def calling(self) -> None:
        """A call is on its way: after a lapse it opens the next generation."""
        if self._lapsed():
            self._status, self._outcome = "active", None
            self._announce()

    def beat(self, now: float) -> float | None:
        """Sends a heartbeat if nothing was sent for a third of the lease; when to be asked again."""
        if self._closed.done or not self._owned() or self._lapsed():
            return None
        due = self._renewed_at + self._lease / 3
        if now < due:
            return due
        self.report(EventType.HEARTBEAT, {})
        return now + self._lease / 3

    def learn(self, status: str, generation: int, outcome: str | None) -> None:
        """The server's last word about it. Once closed here, our own word stands."""
        self.confirmed_generation = self._generation = generation
        if self._closed.done:
            return
        before, self._status, self._outcome = self._status, status, outcome
        if not self._owned() or (before == "terminated") == (status == "terminated"):
            return
        if status == "terminated":
            logger.warning("thunder: the server has ended program %s (%s)", self.id, outcome)
        else:
            self._watch()

    # --- inside ------------------------------------------------------------------------------------------

    def _require_open(self, what: str) -> None:
        if self._closed.done:
            raise ThunderStateError(f"program {self.id} is closed ({self._outcome}): {what} it before that")

    def _owned(self) -> bool:
        return self._owner is _process.epoch()

    def _lapsed(self) -> bool:
        """Whether its lease or the server has ended an owned program that nobody closed."""
        if self._closed.done or not self._owned():
            return False
        process = _process.here()
        silent = process.sources.monotonic() - self._renewed_at
        if self._status != "terminated" and silent > self._lease and process.config.control:
            self._status, self._outcome = "terminated", "lease_expired"
            logger.warning(
                "thunder: program %s was silent for %.1f s, longer than its lease of %g s, and has ended; "
                "its next call opens it again", self.id, silent, self._lease,
            )  # fmt: skip
        return self._status == "terminated"

    def _announce(self) -> None:
        process = _process.here()
        assert self._spec is not None
        self._renewed_at = process.sources.monotonic()
        process.put(Open(self, self._spec.fields(self._identity, self._lease)))
        self._watch()

    def _watch(self) -> None:
        _process.here().watch(self, self._renewed_at + self._lease / 3)

    def _span_parent(self) -> Context | None:
        current = current_program()
        if self._parent is None:
            return None if current is None else Context()
        if self._parent is current or self._parent._span is None:
            return _tracing.context_for(self._parent._span)
        return trace.set_span_in_context(self._parent._span)

    def _enter(self) -> None:
        self._require_open("enter")
        if not self._entered.claim():
            raise ThunderStateError(
                f"program {self.id} has been entered already; make a new one for a new run"
            )
        self.open()

    def _make_current(self) -> None:
        self._frame = _context.push(self, self._span)

    def _leave(self, error: BaseException | None) -> bool:
        if self._frame is not None:
            _context.pop(self._frame)
        return self._end(_outcome_of(error), error)

    def _end(self, outcome: str, error: BaseException | None) -> bool:
        """Closes it if that is ours to do; whether there is a delivery to wait for."""
        if self._spec is None or (self._opened.done and not self._owned()) or not self._closed.claim():
            return False
        self._status, self._outcome = "terminated", outcome
        if not self._opened.done:
            return False
        if self._span is not None:
            _tracing.end(self._span, error, failed=outcome == "error", outcome=outcome)
        process = _process.here()
        process.put(Close(self, outcome))
        return process.config.control

    def _waits(self) -> bool:
        config = _process.here().config
        return config.strict and config.control and self._owned()

    def _deliver(self) -> ThunderError | None:
        process = _process.here()
        return process.sender.flush(CLOSE_TIMEOUT, urgent=process.config.strict)

    def _check_entry(self, error: ThunderError | None) -> None:
        if error is not None:
            self._end("dropped", None)
            raise error

    def _check_delivery(self, error: ThunderError | None, propagating: BaseException | None) -> None:
        if error is None:
            return
        if _process.here().config.strict and propagating is None:
            raise error
        level = logger.warning if _process.here().config.strict else logger.debug
        level("thunder: the end of program %s is not with the server yet: %s", self.id, error)


class Activation:
    """A block in which a program is current. Leaving it ends nothing."""

    __slots__ = ("_frames", "_program")

    def __init__(self, program: Program) -> None:
        self._program = program
        self._frames: list[_context.Frame] = []

    def __enter__(self) -> Program:
        self._program.open()
        self._frames.append(_context.push(self._program, self._program._span))
        return self._program

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _context.pop(self._frames.pop())

    async def __aenter__(self) -> Program:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


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
        environment: not available yet.

    Raises:
        ThunderConfigError: an argument is wrong.

    Example::

        @thunder.program("solve", group="eval-1")
        async def solve(task): ...
    """
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
    made = create(spec)
    return made(name) if callable(name) else made


def create(spec: Spec) -> Program:
    """The program that `spec` describes, here and now."""
    parent = current_program() if isinstance(spec.parent, Parent) else spec.parent
    parent_id = parent.id if isinstance(parent, Program) else parent
    inherited = parent._identity if isinstance(parent, Program) else None
    made = Program(
        Identity(
            id=spec.program_id or f"prg_{_process.here().sources.new_hex()}",
            parent_id=parent_id,
            group=spec.group if spec.group is not None or inherited is None else inherited.group,
            priority=spec.priority if spec.priority is not None or inherited is None else inherited.priority,
            max_wait=spec.max_wait,
        ),
        spec.name,
        spec,
        None,
    )
    made._parent = parent if isinstance(parent, Program) else None
    return made


def attach(context: str) -> Program:
    """A handle on the program that `Program.serialize` put into `context`. It takes part but ends nothing.

    Raises ThunderConfigError if `context` is anything else.

    Example::

        with thunder.attach(job["context"]) as p:
            ...
    """
    handle = Handle.load(context)
    made = Program(handle.identity, handle.name, None, _tracing.remote_span(handle.traceparent))
    made._generation = handle.generation
    return made


# The program that the environment names for the whole process: unread, or one entry.
_ambient: list[Program | None] = []


def current_program() -> Program | None:
    """The innermost open program of this context, else that of ``THUNDER_PROGRAM_CONTEXT``, else None."""
    return _context.innermost_open() or _ambient_program()


def _ambient_program() -> Program | None:
    if not _ambient:
        text = os.environ.get(_config.PROGRAM_CONTEXT)
        found = None
        if text:
            try:
                found = attach(text)
            except ThunderConfigError as error:
                logger.warning("thunder: %s is ignored: %s", _config.PROGRAM_CONTEXT, error)
        _ambient.append(found)
    return _ambient[0]


def forget_ambient(instead: Iterable[Program | None] = ()) -> list[Program | None]:
    """Has the environment read again at its next use, or `instead` stand for it; what stood so far."""
    before = _ambient.copy()
    _ambient[:] = instead
    return before


def acting(tool: str, *, expected: float | None = None) -> Acting:
    """`Program.acting` on whatever program is current when the block begins; without one it does nothing.

    Example::

        @thunder.acting("browser")
        async def open_page(url): ...
    """
    return Acting(current_program, tool, expected)


async def _delivered(within: float) -> ThunderError | None:
    """What `Sender.flush` returns, without blocking the loop. Another library's loop does not wait at all."""
    if not _in_event_loop():
        return None
    process = _process.here()
    delivery = process.sender.delivery(urgent=process.config.strict)
    waiting = asyncio.wrap_future(delivery)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({waiting}, timeout=within)
    return failure_of(delivery, 0.0)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _outcome_of(error: BaseException | None) -> str:
    match error:
        case None:
            return "success"
        case SystemExit(code=0 | None):
            return "success"
        case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
            return "dropped"
        case _:
            return "error"
