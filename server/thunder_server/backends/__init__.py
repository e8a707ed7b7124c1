"""Engines as this server sees them: one poller per backend, one module per kind of engine."""
