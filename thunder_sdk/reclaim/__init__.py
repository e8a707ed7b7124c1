"""How what a program holds is removed, and whether it may be: shared by the SDK, the server and its reapers.

`tasks.reclaim` does one `wire.Task`; the other modules know one kind of thing each. The SDK itself uses it
only while there is no server to do so.
"""
