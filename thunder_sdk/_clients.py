"""LLM clients whose calls belong to the current program."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from thunder_sdk import _transport
from thunder_sdk._exceptions import ThunderConfigError
from thunder_sdk._process import here
from thunder_sdk._tagging import BASE_URL

T = TypeVar("T")


def wrap_openai(client: T) -> T:
    """Makes `client` tag its calls with the current program, and returns it.

    For ``OpenAI``, ``AsyncOpenAI``, their Azure forms and subclasses, openai 2 and 3. Its own HTTP client,
    proxies, hooks, retries and time-outs stay as they are; `copy` and `with_options` of it tag as well. Calls
    go untagged wherever neither the configured server nor its base URL at that moment is. Twice is harmless.

    Raises:
        ThunderConfigError: `client` is no such client.

    Example::

        client = thunder.wrap_openai(openai.OpenAI(base_url="http://127.0.0.1:8300/v1"))
    """
    if here().config.disabled:
        return client
    kind: Any = type(client)
    if not hasattr(kind, "_prepare_request") or not hasattr(getattr(client, "_client", None), "_transport"):
        raise ThunderConfigError(f"wrap_openai takes OpenAI, AsyncOpenAI and the like, not {client!r}")
    if not issubclass(kind, _Wrapped):
        client.__class__ = _wrapped(kind)
    _transport.install(client._client)  # type: ignore[attr-defined]
    return client


class _Wrapped:
    """Marks the classes that `_wrapped` makes."""

    __slots__ = ()


@functools.cache
def _wrapped(kind: Any) -> Any:
    """A subclass of `kind` that says with every request where its base URL is: `copy` may have changed it.

    A copy may have got an HTTP client of its own, too, hence the second `install`.
    """
    original = kind._prepare_request

    def prepare(self: Any, request: Any) -> Any:
        _transport.install(self._client)
        request.extensions[BASE_URL] = str(self.base_url)
        return original(self, request)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, _Wrapped), {**names, "__slots__": (), "_prepare_request": prepare})


def http_client(**kw: Any) -> Any:
    """A synchronous HTTP client that tags calls to the configured server and ``tag_hosts``.

    Of the flavour that the installed openai uses (``openai.DefaultHttpxClient``, with its time-outs), else an
    ``httpx.Client``; `kw` goes to it.

    Example::

        OpenAI(http_client=thunder.http_client(timeout=60))
    """
    return _tagging(_flavour("DefaultHttpxClient", "Client")(**kw))


def async_http_client(**kw: Any) -> Any:
    """The same for asynchronous clients: ``openai.DefaultAsyncHttpxClient``, else ``httpx.AsyncClient``."""
    return _tagging(_flavour("DefaultAsyncHttpxClient", "AsyncClient")(**kw))


def _flavour(openai_name: str, httpx_name: str) -> Any:
    try:
        import openai
    except ImportError:
        import httpx

        return getattr(httpx, httpx_name)
    return getattr(openai, openai_name)


def _tagging(client: T) -> T:
    if not here().config.disabled:
        _transport.install(client)
    return client
