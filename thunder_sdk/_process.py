"""What the SDK holds for this process: the settings, the sender, and whether it is still the same process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from typing import Final

from thunder_sdk._config import Config, Verify
from thunder_sdk._delivery import Patience
from thunder_sdk._dialects import OURS
from thunder_sdk._outbox import Message
from thunder_sdk._pulse import Beating, Pulse
from thunder_sdk._reclaimer import Reclaimer
from thunder_sdk._sender import Sender, logger
from thunder_sdk._sources import Sources, SystemSources

PATIENCE: Final = 2.0  # s that entering, closing and leaving the process wait for the server


class Epoch:
    """One process between two forks. Who opened a program in another epoch does not own it here."""


class Process:
    """Immutable but for its sender's insides; `init` and a fork put a new one in its place."""

    def __init__(
        self,
        config: Config,
        sources: Sources,
        pulse: Pulse,
        *,
        threaded: bool = True,
        patience: float = PATIENCE,
        reclaimer: Reclaimer | None = None,
    ) -> None:
        self.config = config
        self.sources = sources
        self.pulse = pulse
        self.threaded = threaded
        self.patience = patience
        self.sender = Sender(config, sources, pulse, threaded=threaded)
        self.reclaimer = reclaimer or Reclaimer()

    def put(self, message: Message) -> None:
        """Queues control traffic, if there is a server of ours to tell."""
        if self.config.control:
            self.sender.put(message)

    def watch(self, program: Beating, due: float) -> None:
        """Has `program` beat at `due`."""
        if self.config.control:
            self.pulse.watch(program, due)
            self.sender.ring()

    @property
    def root(self) -> str:
        """The server's root as far as known."""
        return self.sender.root or self.config.root

    def renewed(self, config: Config | None = None) -> Process:
        """A successor with nothing queued. Heartbeats go on, and so does what is removed here."""
        return self._like(config or self.config, self.pulse, self.reclaimer)

    def reborn(self) -> Process:
        """The successor in a forked child, which owns no program yet."""
        return self._like(self.config, Pulse(), Reclaimer())

    def _like(self, config: Config, pulse: Pulse, reclaimer: Reclaimer) -> Process:
        return Process(
            config,
            self.sources,
            pulse,
            threaded=self.threaded,
            patience=self.patience,
            reclaimer=reclaimer,
        )


# One slot each, so that a swap is one atomic store.
_process: list[Process] = []
_epoch: list[Epoch] = [Epoch()]


def here() -> Process:
    """This process; configured from the environment if nobody has called `init`."""
    try:
        return _process[0]
    except IndexError:
        first = Process(Config.resolve(os.environ), SystemSources(), Pulse())
        _process.append(first)
        return _process[0]  # whichever thread came first


def epoch() -> Epoch:
    """A token that is another one after a fork."""
    return _epoch[0]


def install(process: Process | None) -> Process | None:
    """Puts `process` in place and returns the one before it."""
    before = _process[0] if _process else None
    _process[:] = [] if process is None else [process]
    return before


def init(
    base_url: str | None = None,
    *,
    api_key: str | None = None,
    strict: bool | None = None,
    disabled: bool | None = None,
    dialects: Iterable[str] = (OURS,),
    tag_hosts: Iterable[str] = (),
    lease: float = 60.0,
    timeout: float = 5.0,
    verify: Verify = True,
) -> None:
    """Sets the SDK up; without it environment and defaults decide. A second call flushes, then replaces.

    Args:
        base_url: the server's root, ``THUNDER_BASE_URL``; a trailing ``/v1`` is dropped. If nobody names one,
            reports go to the server that answers the first tagged call, else to ``http://127.0.0.1:8300``.
        api_key: sent on control calls to that server, ``THUNDER_API_KEY``. LLM calls keep their client's key.
        strict: raise where the server cannot be reached, ``THUNDER_STRICT``. Otherwise it is only logged.
        disabled: programs are objects with an id and nothing else happens, ``THUNDER_DISABLED``.
        dialects: which systems' headers to send: thunder, dynamo, vllm-router, thunderagent, smg, llm-d.
            Without ``"thunder"`` there is no control traffic.
        tag_hosts: further ``host``, ``host:port`` or origin that may see program ids.
        lease: seconds a silent program lives; its owner's heartbeats renew it.
        timeout: seconds for one network operation of the control traffic.
        verify: as in httpx: False, a CA file or an ``ssl.SSLContext``.

    Raises:
        ThunderConfigError: an argument or variable is wrong; the message says which.

    Example::

        thunder.init("http://gpu-box:8300")
    """
    config = Config.resolve(
        os.environ,
        base_url,
        api_key=api_key,
        strict=strict,
        disabled=disabled,
        dialects=dialects,
        tag_hosts=tag_hosts,
        lease=lease,
        timeout=timeout,
        verify=verify,
    )
    if not _process:
        install(Process(config, SystemSources(), Pulse()))
        return
    before = here()
    error = before.sender.flush(before.patience, Patience.CALM)
    if error is not None:
        logger.warning("thunder: init replaces a server that has not taken everything: %s", error)
    before.sender.stop()
    install(before.renewed(config))


def flush(timeout: float = 2.0) -> bool:
    """Waits until everything reported so far is with the server, at most `timeout` seconds.

    Returns whether it is. A server that is away is tried at once, and again until the time is over. With
    ``strict`` a failure raises ThunderConnectionError, or ThunderConfigError if the server refuses the key.
    Blocks: in a coroutine use ``await asyncio.to_thread(thunder.flush)``.
    """
    process = here()
    error = process.sender.flush(timeout, Patience.LASTING)
    if error is not None and process.config.strict:
        raise error
    return error is None


def shutdown(timeout: float = 2.0) -> None:
    """`flush`, then ends the sender's thread. Open programs end by their lease; later use starts afresh."""
    process = here()
    error = process.sender.flush(timeout, Patience.LASTING)
    process.sender.stop()
    install(process.renewed())
    if error is not None:
        logger.warning("thunder: not everything was reported at shutdown: %s", error)


def _at_exit() -> None:
    if _process:
        _process[0].sender.flush(PATIENCE)
        _process[0].reclaimer.wait(PATIENCE)


def _after_fork_in_child() -> None:
    _epoch[0] = Epoch()
    if _process:
        parents = _process[0]
        install(parents.reborn())
        parents.sender.disown()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
