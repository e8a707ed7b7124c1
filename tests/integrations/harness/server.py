"""A real ``thunder serve`` in a process of its own, in front of an engine, and what it told of."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import httpx

from ...e2e.processes import served

Entry = dict[str, Any]


class ThunderServer:
    """``events`` are the stream's entries since the test began, in order.

    The stream is heard on a thread.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.v1 = url + "/v1"
        self._entries: list[Entry] = []
        self._first = 0
        self._markers = itertools.count()
        self._changed = threading.Condition()
        self._http = httpx.Client(base_url=url, timeout=httpx.Timeout(10, read=None), trust_env=False)
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stream", daemon=True)
        self._thread.start()
        assert self._listening.wait(10)
        self._wait_until(lambda: self._http.get("/readyz").status_code == 200)

    def reset(self) -> None:
        """Whatever lives is ended, and what was told so far is another test's."""
        for program in self.programs(status="active") + self.programs(status="paused"):
            self._http.delete(_path(program["id"]), params={"outcome": "dropped"}).raise_for_status()
        _ = self.events
        with self._changed:
            self._first = len(self._entries)

    def close(self) -> None:
        self._http.close()

    # --- the events -------------------------------------------------------------------------------------

    @property
    def events(self) -> list[Entry]:
        """All that has been told up to this moment."""
        marker = f"marker-{next(self._markers)}"
        self._http.put(_path(marker), json={}).raise_for_status()
        self._http.delete(_path(marker)).raise_for_status()
        told = self.wait_for(lambda entries: any(_is_end(entry, marker) for entry in entries))
        return [entry for entry in told if not str(entry["program_id"]).startswith("marker-")]

    def story(self, program_id: str, *kinds: str) -> list[Entry]:
        """One program's entries, of these types (all by default), in order."""
        return [
            entry
            for entry in self.events
            if entry["program_id"] == program_id and (not kinds or entry["type"] in kinds)
        ]

    def types(self, program_id: str, *kinds: str) -> list[str]:
        """Their types alone."""
        return [entry["type"] for entry in self.story(program_id, *kinds)]

    def wait_for(self, condition: Callable[[list[Entry]], object], timeout: float = 20.0) -> list[Entry]:
        """The events, once ``condition`` holds for them."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._entries[self._first :]), timeout):
                told = [(e["type"], e["program_id"]) for e in self._entries[self._first :]]
                raise AssertionError(f"not within {timeout:g} s; told: {told}")
            return self._entries[self._first :]

    def ended(self, program_id: str, timeout: float = 20.0) -> Entry:
        """The program's end, once it has come."""

        def end(entries: list[Entry]) -> list[Entry]:
            return [entry for entry in entries if _is_end(entry, program_id)]

        return end(self.wait_for(end, timeout))[0]

    # --- the programs -----------------------------------------------------------------------------------

    def program(self, program_id: str) -> Entry:
        """As the control plane shows it."""
        return self._http.get(_path(program_id)).json()  # type: ignore[no-any-return]

    def programs(self, **query: str) -> list[Entry]:
        answer = self._http.get("/thunder/v1/programs", params=query)
        return answer.json()["programs"]  # type: ignore[no-any-return]

    def opened(self) -> list[str]:
        """The ids of all programs opened since the test began, in order."""
        return [entry["program_id"] for entry in self.events if entry["type"] == "program.opened"]

    # --- hearing ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        closed = contextlib.suppress(httpx.HTTPError, RuntimeError)
        with closed, self._http.stream("GET", "/thunder/v1/stream") as stream:
            self._listening.set()
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    with self._changed:
                        self._entries.append(json.loads(line.removeprefix("data:")))
                        self._changed.notify_all()

    @staticmethod
    def _wait_until(condition: Callable[[], bool], timeout: float = 15.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.02)


def _path(program_id: str) -> str:
    return f"/thunder/v1/programs/{program_id}"


def _is_end(entry: Entry, program_id: str) -> bool:
    return bool(entry["type"] == "program.terminated" and entry["program_id"] == program_id)


@contextmanager
def thunder_serve(engine_url: str, *words: str) -> Generator[ThunderServer]:
    """A server in front of one engine, until the block is left."""
    with served("--backend", engine_url, *words) as process:
        server = ThunderServer(process.url)
        try:
            yield server
        finally:
            process.process.terminate()
            process.process.wait(20)
            server.close()
