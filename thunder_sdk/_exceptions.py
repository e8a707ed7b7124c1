"""The one error tree."""

from __future__ import annotations


class ThunderError(Exception):
    """Base of everything the SDK raises.

    ::

        ThunderError
        ├── ThunderConfigError (ValueError)    an argument, a variable or a key is wrong: fix the call
        ├── ThunderConnectionError             the server did not answer in time: only with ``strict``
        └── ThunderStateError                  the program is not in a state for this: entered twice, closed …
    """


class ThunderConfigError(ThunderError, ValueError):
    """A wrong argument, environment variable or key. The message says what is expected instead."""


class ThunderConnectionError(ThunderError):
    """The server could not be reached, or did not answer in time."""


class ThunderStateError(ThunderError):
    """The program or block is not in a state in which this is possible."""
