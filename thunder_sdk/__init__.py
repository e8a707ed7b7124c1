"""Tell your engines what your agents are doing.

::

    import thunder_sdk as thunder

    client = thunder.wrap_openai(OpenAI(base_url="http://127.0.0.1:8300/v1"))

    with thunder.program("fix-issue-7") as p:
        client.chat.completions.create(...)
        with p.acting("bash"):
            ...
"""

from thunder_sdk._clients import async_http_client, http_client, wrap_openai
from thunder_sdk._environment import DockerEnvironment
from thunder_sdk._exceptions import (
    ThunderConfigError,
    ThunderConnectionError,
    ThunderError,
    ThunderStateError,
)
from thunder_sdk._executor import ContextThreadPoolExecutor
from thunder_sdk._process import flush, init, shutdown
from thunder_sdk._program import Program, acting, attach, current_program, program
from thunder_sdk._resources import Resource
from thunder_sdk._spec import CURRENT

__all__ = [
    "CURRENT",
    "ContextThreadPoolExecutor",
    "DockerEnvironment",
    "Program",
    "Resource",
    "ThunderConfigError",
    "ThunderConnectionError",
    "ThunderError",
    "ThunderStateError",
    "acting",
    "async_http_client",
    "attach",
    "current_program",
    "flush",
    "http_client",
    "init",
    "program",
    "shutdown",
    "wrap_openai",
]
