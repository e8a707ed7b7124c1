"""``thunder emulate``: an OpenAI-compatible stand-in engine for machines without a GPU.

The engine itself, its cache and its time model are ``thunder_server.simulation``; this package puts text in
front of it and a clock behind it: ``tokens`` text to tokens and back, ``requests`` what a body may say,
``device`` runs steps in real time, ``metrics`` vLLM's metric families, ``server`` the HTTP face.
"""

from thunder_server.emulate.server import EmulatedServer, EngineSettings

__all__ = ["EmulatedServer", "EngineSettings"]
