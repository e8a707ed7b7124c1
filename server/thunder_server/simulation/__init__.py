"""Engines without hardware: the stand-in engine that ``thunder emulate`` serves and the simulator runs.

Pure like the core: no clock, no I/O, no randomness.
"""
