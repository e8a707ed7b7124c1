"""What a real vLLM answered, as `record` has kept it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vcr.persisters.filesystem import FilesystemPersister
from vcr.serializers import yamlserializer

from ..harness.dialogue import Plays
from .record import CASSETTES

NAMES = sorted(path.stem for path in CASSETTES.glob("*.yaml"))


@dataclass(frozen=True)
class Recording:
    """One request and its answer."""

    name: str
    asked: dict[str, Any]
    content_type: str
    body: bytes

    @property
    def streamed(self) -> bool:
        return "event-stream" in self.content_type

    @property
    def plays(self) -> Plays:
        """The answer, for an engine to give again."""
        return Plays(self.body, self.content_type)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The chunks of a stream; a whole answer is the only one."""
        if not self.streamed:
            return [json.loads(self.body)]
        lines = self.body.decode().split("\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    @property
    def usage(self) -> dict[str, Any]:
        return self.events[-1]["usage"]  # type: ignore[no-any-return]

    @property
    def tools(self) -> list[tuple[str, dict[str, Any]]]:
        """The tool calls in it, put together from its pieces."""
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for said in self._said:
            for position, call in enumerate(said.get("tool_calls") or ()):
                index = call.get("index", position)
                names.setdefault(index, call["function"].get("name"))
                arguments[index] = arguments.get(index, "") + (call["function"].get("arguments") or "")
        return [(names[index], json.loads(arguments[index])) for index in sorted(names)]

    def text(self, field: str) -> str:
        """All of ``content`` or ``reasoning``."""
        return "".join(said.get(field) or "" for said in self._said)

    @property
    def _said(self) -> list[dict[str, Any]]:
        kind = "delta" if self.streamed else "message"
        return [choice[kind] for event in self.events for choice in event["choices"]]


def recording(name: str) -> Recording:
    requests, responses = FilesystemPersister.load_cassette(CASSETTES / f"{name}.yaml", yamlserializer)
    (request,), (response,) = requests, responses
    (content_type,) = response["headers"]["content-type"]
    return Recording(name, json.loads(request.body), content_type, response["body"]["string"])
