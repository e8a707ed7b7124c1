"""A claim that exactly one caller gets, without a lock.

Locks are no option in code that agents call: a signal handler that interrupts their holder would wait for
ever, and so would a child forked while another thread holds one.
"""

from __future__ import annotations


class Once:
    """Lets one caller through: ``list.pop`` is atomic.

    >>> once = Once()
    >>> once.done, once.claim(), once.claim(), once.done
    (False, True, False, True)
    """

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = [True]

    def claim(self) -> bool:
        """True for the first caller, False for all others."""
        try:
            return self._token.pop()
        except IndexError:
            return False

    @property
    def done(self) -> bool:
        """Whether somebody has claimed it."""
        return not self._token
