"""Doing what the core decides about resources, where they are: on this machine, or in `thunder reaper`."""
