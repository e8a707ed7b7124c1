"""When and whom: the scheduling policies, by name."""

from __future__ import annotations

from thunder_server.core.policies._protocol import Evict, Intent, KeepWarm, Place, Policy, Spare
from thunder_server.core.policies.cap import Cap, CapSettings
from thunder_server.core.policies.paper import Paper, PaperSettings
from thunder_server.core.policies.passthrough import Passthrough
from thunder_server.core.policies.phase import PhasePolicy, PhaseSettings

__all__ = [
    "POLICIES",
    "Cap",
    "CapSettings",
    "Evict",
    "Intent",
    "KeepWarm",
    "Paper",
    "PaperSettings",
    "Passthrough",
    "PhasePolicy",
    "PhaseSettings",
    "Place",
    "Policy",
    "Spare",
    "make_policy",
    "policy_of_text",
]

POLICIES = ("passthrough", "cap", "paper", "phase")
"""The names there are, from the plainest on; the last one is the default of the server."""


def make_policy(name: str, settings: PaperSettings | CapSettings | PhaseSettings | None = None) -> Policy:
    """The policy of this name, with its settings (default: its own defaults).

    Raises:
        ValueError: no policy of this name, or settings of another one.

    Example:
        >>> make_policy("cap", CapSettings(programs=8)).name
        'cap'
    """
    match name, settings:
        case "passthrough", None:
            return Passthrough()
        case "cap", CapSettings() | None:
            return Cap(settings or CapSettings())
        case "paper", PaperSettings() | None:
            return Paper(settings or PaperSettings())
        case "phase", PhaseSettings() | None:
            return PhasePolicy(settings)
    if name in POLICIES:
        raise ValueError(f"{type(settings).__name__} are not the settings of policy {name!r}")
    raise ValueError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")


def policy_of_text(text: str) -> Policy:
    """A policy and its setting as people write them: ``cap:N`` for N programs a backend, ``paper:X`` for
    decay X, ``phase:warm`` for keeping warm; or a name alone.

    Raises:
        ValueError: no such policy, or no such setting of it.

    Example:
        >>> policy_of_text("paper:1").decay
        1.0
    """
    name, given, setting = text.partition(":")
    match name, given:
        case "cap", ":":
            return make_policy("cap", CapSettings(programs=int(setting)))
        case "paper", ":":
            return make_policy("paper", PaperSettings(decay=float(setting)))
        case "phase", ":" if setting == "warm":
            return make_policy("phase", PhaseSettings(keep_warm=True))
        case _, ":":
            raise ValueError("only cap:N and paper:X take a number")
        case _:
            return make_policy(name)
