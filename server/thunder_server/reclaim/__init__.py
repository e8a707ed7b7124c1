"""Doing what the core decides about resources, on the machine where they are: here, or under `thunder reaper`."""
