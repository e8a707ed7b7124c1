"""``KvRouter``: where a program goes. When it goes, and whom for, is the policy's business.

Each replica that a program may go to is scored::

    capability · (w1 · match + w2 · (1 - load) + w3 · (1 - latency)) + exploration

* *match*: the share of the prompt that is cached there (`Cached`);
* *load*: the share of its memory that is in use;
* *latency*: how much longer calls take there than on a machine that is never busy, as a share of the worst;
* *capability*: its speed as a share of the fastest one's, by the fastest decoding seen of each (`Turnover`);
* *exploration*: what is new, or has lost its cache, gets a bonus that halves every ``EXPLORED_S`` seconds. By
  match alone a cold replica would stay cold.

Requests that share what nobody has computed yet are **gathered**: one goes first, and for a few milliseconds
the others wait, until its engine has begun with it. After one step of the engine they hit what the first one
computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isclose
from typing import Final

from thunder_server.core.backend import Backend
from thunder_server.core.call import Call
from thunder_server.core.decisions import Preferred
from thunder_server.core.prefix import Chain, Lengths, Prompt
from thunder_server.core.program import Program

EXPLORED_S: Final = 30.0
"""Half-life of the exploration bonus."""
REMEMBERED_S: Final = 2.0
"""For how long a look into the caches is remembered, by prefix, while they do not change."""
REMEMBERED: Final = 4096
"""How many looks are remembered."""
LONG_TOKENS: Final = 4096
"""A prompt from this length on is looked up anew when it is dispatched."""
GATHERED_TOKENS: Final = 1024
"""Computing less than this twice is not worth a wait."""
STEP_S: Final = 0.005
"""The gather window of an idle replica; a full one's is ``gather_s``."""
GONE: Final = 0.25
"""A program moves at its call if no more than this share of the prompt is left where it is, ..."""
MARGIN: Final = 0.1
"""... and another replica scores higher by this."""
UNEVEN: Final = 0.25
"""Replicas are out of balance when their loads differ by this share of their memory, ..."""
UNEVEN_S: Final = 30.0
"""... for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Weights of the score, the first exploration bonus, the longest gather window in seconds, and whether
    the router only says what it would do (``shadow``).

    Raises:
        ValueError: a figure makes no sense; the message names it.

    Example:
        >>> RouterSettings(match=0.8, load=0.1, latency=0.1).match
        0.8
    """

    match: float = 0.5
    load: float = 0.3
    latency: float = 0.2
    exploration: float = 0.1
    gather_s: float = 0.02
    shadow: bool = False

    def __post_init__(self) -> None:
        weights = (self.match, self.load, self.latency)
        if not all(0 <= weight <= 1 for weight in weights) or not isclose(sum(weights), 1, abs_tol=1e-6):
            raise ValueError(f"the router's weights are {weights}; each is at least 0, together they are 1")
        if not 0 <= self.exploration <= 1:
            raise ValueError(f"the router's exploration bonus is {self.exploration}; it is 0 to 1")
        if not 0 <= self.gather_s <= 1:
            raise ValueError(f"the router's gather window is {self.gather_s} s; it is 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What speaks for a replica; ``tokens`` of the prompt are cached there."""

    backend: Backend
    tokens: int
    total: float = 0.0

    @property
    def reason(self) -> str:
        return f"there is room, and {self.tokens} tokens of its prompt are cached there"


class KvRouter:
    """Scores replicas, remembers who computes what, and keeps account of its predictions."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.lengths = Lengths()
        self._looks: OrderedDict[tuple[str, int, int], tuple[float, int, int]] = OrderedDict()
        self._leaders: OrderedDict[int, tuple[Call, Backend, float]] = OrderedDict()
        self._uneven_since: float | None = None
        self._said: OrderedDict[int, tuple[int, str]] = (
            OrderedDict()
        )  # how long whole prompts are, and by whom
        self._differ: set[frozenset[str]] = set()
        self.compared = 0  # placements in shadow mode
        self.agreed = 0

    # --- what is cached where

    def prompt(self, messages: Chain | None, blocks: Chain | None, estimate: int) -> Prompt:
        """A prompt that came in, its ends in tokens as far as they are known."""
        measured = self.lengths.measure(messages or Chain((), ()), estimate)
        return Prompt(tokens=estimate, messages=measured, blocks=blocks)

    def resident(self, program: Program, backend: Backend, at: float) -> int:
        """Tokens of what the program sends next that are cached on the backend: of the call that waits, else
        of its context."""
        prompt = _next_prompt(program)
        return 0 if prompt is None else self._held(prompt, backend, at)

    def shared(self, program: Program, backend: Backend) -> int:
        """Tokens that the program has, or would have, in common with others that are placed on the backend:
        they are in memory once, and need no room of their own."""
        if program in backend.programs:
            return backend.sharing.of(program)
        prompt = _next_prompt(program)
        return 0 if prompt is None else backend.sharing.common(prompt.messages)

    def _held(self, prompt: Prompt, backend: Backend, at: float) -> int:
        name = (backend.id, prompt.messages.keys[-1], len(prompt.blocks or ()))
        look = self._looks.get(name)
        if look is not None:
            until, version, tokens = look
            if at <= until and version == backend.cache.version:
                return tokens
        tokens = backend.cache.held(prompt)
        self._looks[name] = (at + REMEMBERED_S, backend.cache.version, tokens)
        self._looks.move_to_end(name)
        if len(self._looks) > REMEMBERED:
            self._looks.popitem(last=False)
        return tokens

    # --- where

    def route(self, program: Program, candidates: Sequence[Backend], usual: Backend, at: float) -> Score:
        """The candidate with the highest score; ``usual`` among equals, always if nothing is known of the
        prompt, and in shadow mode."""
        prompt = _next_prompt(program)
        if prompt is None or self.settings.shadow or len(candidates) == 1:
            tokens = 0 if prompt is None else self._held(prompt, usual, at)
            return Score(backend=usual, tokens=tokens)
        return self.best(prompt, candidates, usual, at)

    def best(self, prompt: Prompt, candidates: Sequence[Backend], usual: Backend, at: float) -> Score:
        """The candidate with the highest score, whatever the mode; a hundredth more does not count."""
        scores = self.scores(prompt, candidates, at)
        return max(scores, key=lambda score: (round(score.total, 2), score.backend is usual, score.total))

    def scores(
        self, prompt: Prompt, candidates: Sequence[Backend], at: float, program: Program | None = None
    ) -> list[Score]:
        """What speaks for each candidate. What the ``program`` itself holds on one is no load there."""
        settings = self.settings
        known = all(backend.limit != inf for backend in candidates)
        loads = [_load(backend, program, at, by_memory=known) for backend in candidates]
        fullest = max(loads, default=0.0) or 1.0
        fastest = min((b.turnover.decode_s for b in candidates), default=inf)
        slowest = max((b.pace.stretch(at) for b in candidates), default=1.0)
        scores: list[Score] = []
        for backend, load in zip(candidates, loads, strict=True):
            tokens = self._held(prompt, backend, at)
            match = tokens / prompt.tokens if prompt.tokens else 0.0
            decode_s = backend.turnover.decode_s
            capability = fastest / decode_s if decode_s != inf else 1.0
            total = capability * (
                settings.match * match
                + settings.load * (1 - load / fullest)
                + settings.latency * (1 - backend.pace.stretch(at) / slowest)
            )
            age = at - backend.cold_since
            total += settings.exploration * 0.5 ** (age / EXPLORED_S)
            scores.append(Score(backend=backend, total=total, tokens=tokens))
        return scores

    def recheck(self, program: Program, call: Call, candidates: Sequence[Backend], at: float) -> Score | None:
        """Where a long prompt is better sent than where its program is; ``None``: nowhere.

        A program keeps its replica while it acts, and its prefix may be gone from there by now.
        """
        prompt, here = call.prompt, program.backend_id
        if self.settings.shadow or prompt.tokens < LONG_TOKENS or not len(prompt.messages):
            return None
        current = next((backend for backend in candidates if backend.id == here), None)
        if current is None or backend_share(self._held(prompt, current, at), prompt) > GONE:
            return None
        scores = {score.backend: score for score in self.scores(prompt, candidates, at, program)}
        best = max(scores.values(), key=lambda score: score.total)
        return best if best.total > scores[current].total + MARGIN else None

    def compare(
        self, program: Program, candidates: Sequence[Backend], taken: Backend, at: float
    ) -> Preferred | None:
        """Where the router would have had a program that goes to ``taken``."""
        prompt = _next_prompt(program)
        if prompt is None or len(candidates) < 2:
            return None
        best = self.best(prompt, candidates, taken, at)
        self.compared += 1
        self.agreed += best.backend is taken
        return Preferred(
            program_id=program.id,
            backend_id=taken.id,
            preferred_id=best.backend.id,
            cached_tokens=self._held(prompt, taken, at),
            preferred_tokens=best.tokens,
        )

    # --- gathering

    def gathers(self, program: Program, at: float) -> float | None:
        """Until when the program's first waiting call should let another one go first, which computes what
        the two have in common; ``None``: it need not."""
        self._forget_leaders(at)
        call = program.first_waiting()
        if call is None or not self._leaders or call.tried:
            return None
        chain = call.prompt.messages
        for index in range(len(chain) - 1, -1, -1):
            leader = self._leaders.get(chain.keys[index])
            if leader is not None:
                first, backend, until = leader
                under_way = at < until and first.backend_id == backend.id and not first.produced
                return until if under_way and chain.ends[index] - first.predicted >= GATHERED_TOKENS else None
        return None

    def gathering(self, at: float) -> float | None:
        """When the latest window closes that calls may wait for now."""
        if not self._leaders:
            return None
        _, _, until = next(reversed(self._leaders.values()))
        return until if until > at else None

    def _forget_leaders(self, at: float) -> None:
        while self._leaders and next(iter(self._leaders.values()))[2] <= at:
            self._leaders.popitem(last=False)

    def _lead(self, call: Call, backend: Backend, at: float) -> None:
        self._forget_leaders(at)
        settings = self.settings
        if settings.shadow or call.prompt.tokens - call.predicted < GATHERED_TOKENS or not settings.gather_s:
            return
        full = min(1.0, backend.used(at) / backend.limit) if backend.running > 1 else 0.0
        window = min(STEP_S, settings.gather_s) + full * max(0.0, settings.gather_s - STEP_S)
        chain = call.prompt.messages
        for key, end in zip(chain.keys, chain.ends, strict=True):
            if end > call.predicted:
                self._leaders[key] = (call, backend, at + window)
                self._leaders.move_to_end(key)

    # --- what happens to calls

    def dispatched(self, call: Call, backend: Backend, at: float) -> None:
        """A call goes to a backend: predict, and take it that its prompt will be there."""
        prompt = call.prompt
        call.predicted = backend.cache.held(prompt)
        call.last_use = backend.cache.belief.last_use(prompt.messages)
        self._lead(call, backend, at)
        call.coming = backend.cache.sent(prompt, backend.limit)

    def learn(self, call: Call, tokens: int, backend: Backend) -> str | None:
        """An engine has said how long the prompt was. The id of another one that said otherwise of the same
        prompt, at the first such pair of engines."""
        chain = call.request.messages
        call.prompt.tokens = tokens
        if chain is None or not len(chain):
            return None
        self.lengths.learn(chain, tokens)
        call.prompt.messages = self.lengths.measure(chain, tokens)
        said, by = self._said.setdefault(chain.keys[-1], (tokens, backend.id))
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        pair = frozenset((by, backend.id))
        if said == tokens or len(pair) == 1 or pair in self._differ:
            return None
        self._differ.add(pair)
        return by

    def answered(self, call: Call, backend: Backend, answer: int, cached: int | None) -> None:
        """The engine has answered with so many tokens; ``cached`` of its prompt were there before."""
        prompt = call.prompt
        if cached is not None and len(prompt.messages):
            backend.forecast.add(call.predicted, cached)
            backend.cache.reconcile(call.predicted, cached, call.last_use)
        backend.cache.answered(prompt, backend.limit, answer)

    def touched(self, program: Program, backend: Backend) -> None:
        """The engine is sent a program's latest prompt again."""
        if program.prompt is not None:
            backend.cache.answered(program.prompt, backend.limit, 0)

    # --- balance

    def uneven(self, backends: Sequence[Backend], at: float) -> tuple[Backend, Backend] | None:
        """The fullest replica and the emptiest one, once they have been far apart for long."""
        known = [backend for backend in backends if backend.limit != inf]
        if self.settings.shadow or len(known) < 2:
            return None
        loads = {backend: backend.used(at) / backend.limit for backend in known}
        full, empty = max(known, key=loads.__getitem__), min(known, key=loads.__getitem__)
        if loads[full] - loads[empty] < UNEVEN:
            self._uneven_since = None
            return None
        if self._uneven_since is None:
            self._uneven_since = at
        return (full, empty) if at - self._uneven_since >= UNEVEN_S else None


def _load(backend: Backend, program: Program | None, at: float, *, by_memory: bool) -> float:
    """Share of its memory that is in use, or programs per weight; without this program."""
    here = program is not None and program in backend.charges
    if not by_memory:
        return backend.load - here / backend.weight
    own = backend.weight_of(program, at) if program is not None and here else 0.0
    return max(0.0, backend.used(at) - own) / backend.limit


def backend_share(tokens: int, prompt: Prompt) -> float:
    """``tokens`` as a share of the prompt."""
    return tokens / max(1, prompt.tokens)


def _next_prompt(program: Program) -> Prompt | None:
    call = program.first_waiting()
    prompt = program.prompt if call is None else call.prompt
    return prompt if prompt is not None and len(prompt.messages) else None
