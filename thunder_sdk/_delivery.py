"""Who waits for what to have left, and for how long they put up with a server that is away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum

from thunder_sdk._exceptions import ThunderError


class Patience(StrEnum):
    """What waiting does about a server that cannot be reached."""

    CALM = "calm"  # it ends as soon as the server is known to be away
    EAGER = "eager"  # it has the server tried at once, and ends with that try
    LASTING = "lasting"  # it has the server tried at once, and goes on until it is back


@dataclass(slots=True)
class _Waiter:
    number: int
    patience: Patience
    future: Future[None]
    tried: bool = False


class Deliveries:
    """The waits of one sender. `add` may be called from anywhere, all else belongs to the sender's thread.

    Whoever gives up cancels the future; it is then forgotten.
    """

    def __init__(self) -> None:
        self._waiters: deque[_Waiter] = deque()

    def add(self, number: int, patience: Patience) -> Future[None]:
        """Done when everything up to `number` has left."""
        future: Future[None] = Future()
        self._waiters.append(_Waiter(number, patience, future))
        return future

    def __bool__(self) -> bool:
        return bool(self._waiters)

    @property
    def eager(self) -> bool:
        """Whether somebody wants the server tried now, however lately it failed."""
        return any(
            waiter.patience is not Patience.CALM and not waiter.tried for waiter in self._waiters.copy()
        )

    def release(self, through: float) -> None:
        """Everything up to number `through` has left."""
        self._end(lambda waiter: waiter.number <= through, None)

    def fail(self, error: ThunderError, *patiences: Patience) -> None:
        """Ends those of these `patiences`."""
        self._end(lambda waiter: waiter.patience in patiences, error)

    def failed(self, error: ThunderError) -> None:
        """A try has failed."""
        self.fail(error, Patience.CALM, Patience.EAGER)
        for waiter in self._waiters.copy():
            waiter.tried = True

    def _end(self, concerned: Callable[[_Waiter], bool], error: ThunderError | None) -> None:
        for _ in range(len(self._waiters)):  # those of this moment; others may join meanwhile
            waiter = self._waiters.popleft()
            if not concerned(waiter):
                if not waiter.future.cancelled():
                    self._waiters.append(waiter)
            elif waiter.future.set_running_or_notify_cancel():
                if error is None:
                    waiter.future.set_result(None)
                else:
                    waiter.future.set_exception(error)
