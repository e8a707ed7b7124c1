"""``thunder emulate``: an OpenAI-compatible stand-in engine for machines without a GPU.

The engine itself, its cache and its time model are ``thunder_server.simulation``; this package puts text in
front of it and a clock behind it. ``requests`` says what a body may hold, ``tokens`` turns text into tokens,
``answers`` decides what is said, ``device`` when, ``replies`` in which shape; ``anthropic`` and ``responses``
are bodies and replies of two more APIs. ``refusals`` are what else may come back, ``metrics`` are vLLM's, and
``server`` is the HTTP face.
"""

from thunder_server.emulate.server import EmulatedServer
from thunder_server.emulate.settings import EngineSettings

__all__ = ["EmulatedServer", "EngineSettings"]
