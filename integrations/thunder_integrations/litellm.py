"""LiteLLM, the library: every call carries the current program, through one global hook.

::

    import thunder_sdk as thunder
    import thunder_integrations.litellm

    thunder_integrations.litellm.install()

    with thunder.program("fix-issue-7"):
        litellm.completion(model="hosted_vllm/qwen", api_base="http://127.0.0.1:8300/v1", messages=[...])

LiteLLM tells a callback about every request right before it is sent: where it goes, and with which headers.
That is the one place, common to sync and async, streams, ``responses()``, routers, retries and fallbacks,
where the host is known; what is added there goes to the configured server (and ``tag_hosts``), nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

import litellm
from litellm.integrations.custom_logger import CustomLogger

import thunder_sdk as thunder

# How a URL ends that LiteLLM sends to itself; what it hands to the openai client is the base of such URLs.
_ENDPOINT: Final = re.compile(
    r"/(completions|responses|messages|embeddings|moderations|rerank|score|audio/\w+|images/\w+)(/|$)"
)


class Tagger(CustomLogger):
    """The hook. One is enough for a process, whatever its threads and event loops."""

    def log_pre_api_call(self, model: str, messages: Any, kwargs: dict[str, Any]) -> None:
        """Adds the current program's headers to the request that LiteLLM is about to send."""
        request = kwargs["additional_args"]
        url = str(request.get("api_base") or "")
        ours = self.headers_to(url)
        headers = _headers_of(request, url) if ours else None
        if headers is not None:
            add(ours, headers)

    def headers_to(self, url: str) -> dict[str, str]:
        """What a call to `url` says of its program."""
        program = thunder.current_program()
        return {} if program is None else program.headers_to(url)


def install() -> None:
    """Makes every LiteLLM call of this process carry the program that is current where the call is made.

    Callbacks, ``proxy_auth`` and a call's own ``extra_headers``, ``extra_body`` and ``metadata`` stay as they
    are; a header that a call sets itself wins. A second call changes nothing.
    """
    if not any(isinstance(callback, Tagger) for callback in litellm.input_callback):
        litellm.logging_callback_manager.add_litellm_input_callback(Tagger())


def add(ours: dict[str, str], headers: MutableMapping[str, Any]) -> None:
    """Adds `ours` to `headers`, except what is there under any spelling."""
    present = {name.lower() for name in headers}
    headers.update({name: value for name, value in ours.items() if name.lower() not in present})


def _headers_of(request: dict[str, Any], url: str) -> MutableMapping[str, Any] | None:
    """The headers that will be sent, None where they cannot be reached.

    Calls that LiteLLM sends itself name their full URL, and ``headers`` is what goes out. Those that it makes
    through the openai client name its base URL, and pass it ``extra_headers``, which may be the caller's own.
    """
    if _ENDPOINT.search(urlsplit(url).path):
        sent: MutableMapping[str, Any] | None = request.get("headers")
        return sent
    arguments = request.get("complete_input_dict")
    if not isinstance(arguments, dict):
        return None  # a file, say, in words for a log
    copy: MutableMapping[str, Any] = dict(arguments.get("extra_headers") or {})
    arguments["extra_headers"] = copy
    return copy
