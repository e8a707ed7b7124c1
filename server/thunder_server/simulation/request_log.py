"""Logs of requests and responses, as proxies and tracing tools write them: JSON lines, one call a line.

What is looked for, first match wins; everything else in a line is ignored::

    {"timestamp": 1764433000.2, "end_time": 1764433003.9, "session_id": "django-11099",
     "request": {"model": "…", "messages": […]},
     "response": {"usage": {"prompt_tokens": 9120, "completion_tokens": 77, …}, …}}

* the request's body: ``request.body``, ``request``, ``body``, or the line itself where it has ``messages``,
  ``prompt`` or ``input``; the response's likewise;
* when it was sent (`SENT`), and when answered (`ANSWERED`) or how long that took (`TOOK`): Unix seconds or
  milliseconds, or ISO 8601;
* tokens: ``usage`` of the response, or the line's own ``prompt_tokens`` and ``completion_tokens``; where
  there are none, four characters are taken for a token;
* whose call it is (`PROGRAM`, `HEADERS`), in the line, its ``metadata``, its headers or the request's. Where
  nobody says, a call whose messages begin with those of an earlier one goes on from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise

from thunder_server.simulation.jsonlines import Record, TraceError
from thunder_server.simulation.prompt_text import Chain, prompt_of
from thunder_server.simulation.traffic import Call, Source, Traffic, to_starts
from thunder_server.simulation.workload import Gap

SENT = ("timestamp", "time", "ts", "start_time", "startTime", "started_at", "created_at", "request_time")
ANSWERED = ("end_time", "endTime", "ended_at", "completed_at", "finished_at", "response_time")
TOOK = {
    "duration": 1.0,
    "duration_s": 1.0,
    "latency": 1.0,
    "latency_s": 1.0,
    "elapsed": 1.0,
    "duration_ms": 1e-3,
    "latency_ms": 1e-3,
    "response_ms": 1e-3,
}
PROGRAM = ("program_id", "session_id", "conversation_id", "trace_id", "run_id")
HEADERS = (
    "x-thunder-program-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "x-session-id",
    "session-id",
)
MILLISECONDS = 1e11
"""Numbers from here on are milliseconds: as seconds they would be in the year 5138."""
CHARS_PER_TOKEN = 4


class Left(StrEnum):
    """What of a log cannot be replayed, and is left out."""

    FAILED = "call that failed"
    TWICE = "call that is there twice"
    NOT_TEXT = "call that generates no text"
    EMPTY = "call without a prompt or an output"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logged:
    """A line, understood."""

    call: Call
    program: str | None
    model: str
    prompt: Chain
    response_id: str | None
    previous_response_id: str | None


@dataclass(slots=True)
class _Guesses:
    """How much had to be guessed, in calls."""

    tokens: int = 0
    times: int = 0
    programs: int = 0


def read(records: Iterable[Record], left: Counter[str]) -> Traffic:
    """Traffic of the lines of one or more logs; their order does not matter."""
    guesses = _Guesses()
    logged = []
    answers: set[tuple[str | None, float, int]] = set()
    for record in records:
        line = _line(record, left, guesses)
        if line is None:
            continue
        answer = (line.response_id, line.call.at, line.prompt.whole)
        if line.response_id is not None and answer in answers:
            left[Left.TWICE] += 1
            continue
        answers.add(answer)
        logged.append(line)
    logged.sort(key=lambda line: line.call.at)
    programs = _by_program(logged, guesses)
    families = _families(programs)
    guessed = (
        (guesses.programs, "calls name no program; they were put together by how their prompts begin"),
        (guesses.tokens, "calls have no usage; their tokens are estimated from their text"),
        (guesses.times, "calls do not say when they were answered; they count as answered at once"),
    )
    return Traffic(
        source=Source.LOG,
        starts=to_starts((name, *families[name], _with_shares(lines)) for name, lines in programs.items()),
        calls={name: [line.call for line in lines] for name, lines in programs.items()},
        repeated_tokens=_repeated(logged),
        skipped={kind: number for kind, number in left.items() if number},
        notes=tuple(f"{number} of {len(logged)} {what}" for number, what in guessed if number),
    )


# --- one line


def _line(record: Record, left: Counter[str], guesses: _Guesses) -> _Logged | None:
    request = _body(record, "request") or record
    response = _body(record, "response")
    answer = response or record
    if _failed(record, answer):
        left[Left.FAILED] += 1
        return None
    prompt = prompt_of(request)
    if prompt is None:
        left[Left.NOT_TEXT] += 1
        return None
    sent = _moment(record, SENT)
    if sent is None and "created" in answer:
        sent = answer.seconds("created")
    if sent is None:
        raise TraceError(f"{record.where}: does not say when it was sent; name the time {SENT[0]!r}")
    answered = _answered(record, sent)
    if answered is None:
        guesses.times += 1
        answered = sent
    if answered < sent:
        raise TraceError(f"{record.where}: was answered before it was sent ({answered} before {sent})")
    tokens = _usage(answer) or _usage(record)
    if tokens is None:
        guesses.tokens += 1
        written = prompt_of(answer, answer=True)
        tokens = _Usage(
            prompt.chain.chars // CHARS_PER_TOKEN,
            written.chain.chars // CHARS_PER_TOKEN if written else 0,
            None,
        )
    if (tokens.cached or 0) > tokens.prompt:
        raise record.wrong("cached_tokens", f"is {tokens.cached}, more than the prompt holds")
    if not tokens.prompt or not tokens.output:
        left[Left.EMPTY] += 1
        return None
    return _Logged(
        call=Call(
            at=sent,
            ended=answered,
            prompt_tokens=tokens.prompt,
            output_tokens=tokens.output,
            cached_tokens=tokens.cached,
            gap=Gap.TOOL if prompt.after_tool else Gap.HUMAN,
        ),
        program=_program(record, request),
        model=request.text("model", record.text("model", "unknown")),
        prompt=prompt.chain,
        response_id=answer.text("id") if "id" in answer else None,
        previous_response_id=request.text("previous_response_id")
        if "previous_response_id" in request
        else None,
    )


def _body(record: Record, name: str) -> Record | None:
    value = record.fields.get(name)
    if value is None:
        value = record.fields.get("body") if name == "request" else record.fields.get("completion")
    if not isinstance(value, dict):
        return None
    inner = value.get("body")
    return Record(inner if isinstance(inner, dict) else value, f"{record.where}, {name}")


def _failed(record: Record, answer: Record) -> bool:
    statuses = (
        record.fields.get("status"),
        record.fields.get("status_code"),
        answer.fields.get("status_code"),
    )
    numbers = [status for status in statuses if isinstance(status, int)]
    return any(number >= 400 for number in numbers) or bool(
        record.fields.get("error") or answer.fields.get("error") or "failure" in statuses
    )


def _moment(record: Record, names: Sequence[str]) -> float | None:
    for name in names:
        if name in record:
            value = record.fields[name]
            if isinstance(value, str):
                return _parsed(record, name, value)
            if isinstance(value, float | int) and MILLISECONDS < value < 1000 * MILLISECONDS:
                return value / 1000
            return record.seconds(name)
    return None


def _parsed(record: Record, name: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise record.wrong(name, f"must be Unix seconds or ISO 8601, not {text[:40]!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _answered(record: Record, sent: float) -> float | None:
    for name, unit in TOOK.items():
        if name in record:
            return sent + record.seconds(name) * unit
    return _moment(record, ANSWERED)


@dataclass(frozen=True, slots=True)
class _Usage:
    prompt: int
    output: int
    cached: int | None


def _usage(answer: Record) -> _Usage | None:
    usage = Record(answer.fields["usage"], f"{answer.where}, usage") if "usage" in answer else answer
    if "prompt_tokens" in usage:
        details = usage.fields.get("prompt_tokens_details")
        return _Usage(
            usage.tokens("prompt_tokens"), usage.tokens("completion_tokens", 0), _cached(usage, details)
        )
    if "input_tokens" not in usage:
        return None
    if "cache_read_input_tokens" in usage:  # Anthropic's: parts that add up to the prompt
        cached = usage.tokens("cache_read_input_tokens")
        prompt = usage.tokens("input_tokens") + cached + usage.tokens("cache_creation_input_tokens", 0)
        return _Usage(prompt, usage.tokens("output_tokens", 0), cached)
    details = usage.fields.get("input_tokens_details")
    return _Usage(usage.tokens("input_tokens"), usage.tokens("output_tokens", 0), _cached(usage, details))


def _cached(usage: Record, details: object) -> int | None:
    if not isinstance(details, dict) or details.get("cached_tokens") is None:
        return None
    return Record(details, usage.where).tokens("cached_tokens")


def _program(record: Record, request: Record) -> str | None:
    outer = [record.fields, record.fields.get("metadata"), request.fields, request.fields.get("metadata")]
    extra = request.fields.get("extra_body")
    for place in (*outer, extra):
        for name in PROGRAM:
            if isinstance(place, dict) and isinstance(value := place.get(name), str) and value:
                return value
    raw = record.fields.get("request")
    for holder in (record.fields, raw):
        headers = holder.get("headers") if isinstance(holder, dict) else None
        if isinstance(headers, dict):
            lowered = {str(name).lower(): value for name, value in headers.items()}
            for name in HEADERS:
                if isinstance(value := lowered.get(name), str) and value:
                    return value
    return None


# --- many lines


def _by_program(logged: Sequence[_Logged], guesses: _Guesses) -> dict[str, list[_Logged]]:
    programs: dict[str, list[_Logged]] = defaultdict(list)
    by_response: dict[str, str] = {}
    ends: dict[int, list[str]] = defaultdict(list)  # programs by the whole of their last prompt
    for line in logged:
        name = line.program
        if name is None:
            guesses.programs += 1
            name = by_response.get(line.previous_response_id or "") or _goes_on(line, ends, programs)
            if name is None:
                name = f"unnamed-{len(programs) + 1}"
            ends[line.prompt.whole].append(name)
        if line.response_id is not None:
            by_response[line.response_id] = name
        programs[name].append(line)
    return dict(programs)


def _goes_on(line: _Logged, ends: dict[int, list[str]], programs: dict[str, list[_Logged]]) -> str | None:
    """The program whose last prompt is the longest that this one begins with."""
    for link in reversed(line.prompt.links[:-1]):
        for name in ends.get(link.digest, ()):
            if programs[name][-1].call.ended <= line.call.at:
                ends[link.digest].remove(name)
                return name
    return None


def _families(programs: dict[str, list[_Logged]]) -> dict[str, tuple[str, int]]:
    """Each program's family, and the tokens that all prompts of it begin with: the longest beginning of its
    first prompt that another program's first prompt has too."""
    seen: Counter[int] = Counter(link.digest for lines in programs.values() for link in lines[0].prompt.links)
    families: dict[str, tuple[str, int]] = {}
    for name, lines in programs.items():
        first = lines[0]
        common = [link for link in first.prompt.links if seen[link.digest] > 1]
        if common:
            families[name] = (
                f"{first.model} {common[-1].digest:x}",
                first.prompt.tokens(common[-1], first.call),
            )
        else:
            families[name] = (f"{first.model} {name}", 0)
    return families


def _with_shares(lines: Sequence[_Logged]) -> list[Call]:
    calls = [lines[0].call]
    for before, line in pairwise(lines):
        common = before.prompt.common(line.prompt)
        shared = min(before.prompt.tokens(common, before.call), line.call.prompt_tokens) if common else 0
        if line.previous_response_id is not None and line.previous_response_id == before.response_id:
            shared = min(before.call.prompt_tokens, line.call.prompt_tokens)
        calls.append(replace(line.call, shared_tokens=shared))
    return calls


def _repeated(logged: Sequence[_Logged]) -> int:
    """Prompt tokens that some earlier prompt had begun with."""
    known: set[tuple[str, int]] = set()
    repeated = 0
    for line in logged:
        again = [link for link in line.prompt.links if (line.model, link.digest) in known]
        if again:
            repeated += line.prompt.tokens(again[-1], line.call)
        known.update((line.model, link.digest) for link in line.prompt.links)
    return repeated
