"""Traffic from files of any kind that we know, told apart by how they begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from thunder_server.simulation import capture, request_log, workload
from thunder_server.simulation.jsonlines import Record, TraceError, open_text, parse, records
from thunder_server.simulation.simulator import Start
from thunder_server.simulation.traffic import Source, Traffic
from thunder_server.simulation.workload import Session

_SERVER_SENT = ("data:", "id:", "event:", "retry:", ":")
_REQUEST = frozenset({"request", "body", "messages", "prompt", "input", "response", "completion"})


def read(paths: Sequence[Path]) -> Traffic:
    """The traffic of one file, or of several of the same kind as if they were one.

    Raises:
        TraceError: a file cannot be used; the message names it and the line.
    """
    kinds = [(path, source_of(path)) for path in paths]
    for path, kind in kinds:
        if kind is not kinds[0][1]:
            raise TraceError(
                f"{path}: is of kind {kind}, {kinds[0][0]} is of kind {kinds[0][1]}; analyze them one by one"
            )
    left: Counter[str] = Counter()
    match kinds[0][1]:
        case Source.TRACE:
            traffic = _traces(paths)
        case Source.STREAM:
            traffic = capture.read(_captured(paths, left), left)
        case Source.LOG:
            traffic = request_log.read(_logged(paths), left)
    return _answered(traffic, ", ".join(str(path) for path in paths))


def captured(lines: Iterable[str], name: str) -> Traffic:
    """The traffic of an event stream whose lines, with their ends, came from elsewhere than a file: from
    ``name``, as complaints call it."""
    left: Counter[str] = Counter()
    return _answered(capture.read(capture.entries(lines, name, left), left), name)


def source_of(path: Path) -> Source:
    """What kind of file this is, by its first line that is not blank."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                return _kind(text, f"{path}, line {number}")
    raise TraceError(f"{path}: is empty")


def _kind(text: str, where: str) -> Source:
    if text.startswith(_SERVER_SENT):
        return Source.STREAM
    value = parse(text, where)
    if isinstance(value, list):
        raise TraceError(
            f"{where}: is a JSON array; write one object a line, for instance with: jq -c '.[]' FILE"
        )
    fields = Record(value, where).fields
    if "requests" in fields:
        return Source.TRACE
    if "do" in fields:
        raise TraceError(
            f"{where}: is of the journal that a server keeps of resources, which knows no calls; "
            "capture its /thunder/v1/stream instead"
        )
    kind = fields.get("type")
    if isinstance(kind, str) and "." in kind and "at" in fields:
        return Source.STREAM
    if not _REQUEST.isdisjoint(fields):
        return Source.LOG
    if "id" in fields:
        return Source.TRACE  # which has more to say about what is missing
    raise TraceError(
        f"{where}: is neither a session of a trace ('requests'), nor an entry of a server's event stream "
        "('type', 'at'), nor a call of a log ('request', 'response')"
    )


def _answered(traffic: Traffic, name: str) -> Traffic:
    if not traffic.starts:
        reasons = ", ".join(f"{number} × {kind}" for kind, number in sorted(traffic.skipped.items()))
        raise TraceError(f"{name}: holds no answered call" + (f" (left out: {reasons})" if reasons else ""))
    return traffic


def _traces(paths: Sequence[Path]) -> Traffic:
    skipped: Counter[str] = Counter()
    sessions: list[Session] = []
    for path in paths:
        trace = workload.load(path)
        sessions += trace.sessions
        skipped.update({kind.value: number for kind, number in trace.skipped.items()})
    return Traffic(
        source=Source.TRACE,
        starts=tuple(Start(session=session) for session in sessions),
        skipped=dict(skipped),
    )


def _captured(paths: Sequence[Path], left: Counter[str]) -> Iterator[Record]:
    for path in paths:
        with open_text(path) as lines:
            yield from capture.entries(lines, str(path), left)


def _logged(paths: Sequence[Path]) -> Iterator[Record]:
    for path in paths:
        with open_text(path) as lines:
            yield from records(lines, str(path))
