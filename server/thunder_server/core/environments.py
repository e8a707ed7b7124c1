"""Environments of programs: prepared before they are needed, and not before.

A program that is given room at once has its environment prepared at once; others when their turn is near (see
``turns``).

A queued program is not restored before its environment is there; it holds no room meanwhile, and others are
served. What fails is tried again a few times if that can help; then the program goes on without, and its
client is told.
"""

from __future__ import annotations

from math import inf

from thunder_server.core import decisions as d
from thunder_server.core.environment import (
    USABLE,
    Environment,
    EnvironmentState,
    Stage,
    container_name,
)
from thunder_server.core.events import EnvironmentWanted
from thunder_server.core.ledger import Ledger
from thunder_server.core.program import Program, State
from thunder_server.core.resource_events import (
    EnvironmentEvent,
    EnvironmentFailed,
    EnvironmentHibernated,
    EnvironmentPrepared,
    EnvironmentWoken,
)
from thunder_server.core.resources import ThingKey
from thunder_server.core.turns import Turns
from thunder_server.core.world import Due, World

LOOK_S = 0.5
"""Between two looks at the queue, while environments are to be prepared."""
SOON_S = 0.05
"""After something has changed; more changes within that time are one look."""
AT_ONCE = 8
"""Of those that have time so many are prepared at a time: more would only hold up those that have none."""
ATTEMPTS = 3
RETRY_S = 1.0
"""Before the second attempt; doubled before the third."""
ADVICE = "run `thunder reaper` there, or say with DOCKER_HOST which engine to use"
UNSERVED_S = 30.0
"""How long somebody is hoped for to prepare environments on a host."""


class Environments:
    """Decides when environments are prepared, hibernated and woken."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._w = world
        self._ledger = ledger
        self._turns = Turns(world)
        self._known: dict[tuple[str, int], Program] = {}  # whose environments may be heard of
        self._unready: dict[Program, None] = {}  # waiting or hibernated
        self._promised: dict[Program, None] = {}  # prepared for a first place that it has not got yet
        self._preparing: dict[Program, None] = {}
        self._begun_at = -inf  # the latest

    # --- what clients say

    def wanted(self, program: Program, wanted: EnvironmentWanted) -> None:
        """The program is to have one; of several words the first counts."""
        if program.environment is None:
            name = container_name(program.id, program.generation)
            program.environment = Environment(wanted=wanted, name=name)
            self._known[program.id, program.generation] = program
            self._tell(program, program.environment, "wanted")
            self._unready[program] = None
            self._soon()

    def awaited(self, program: Program) -> None:
        """A client waits for it."""
        environment = program.environment
        if environment is not None and environment.awaited_since is None:
            environment.awaited_since = self._w.now
            self._soon()

    def recovered(self, program: Program, wanted: EnvironmentWanted, container_id: str | None) -> None:
        """An earlier run of the server knew it; if it was ready, it is."""
        self.wanted(program, wanted)
        environment = program.environment
        assert environment is not None
        if container_id is not None:
            environment.container_id = container_id
            environment.state = EnvironmentState.READY
            del self._unready[program]
            self._tell(program, environment, "known from before the server's start")

    # --- what becomes of the program

    def settle(self, program: Program) -> None:
        """Something has happened to the program: it may need its environment now."""
        environment = program.environment
        if environment is None:
            return
        if program.backend_id is not None:
            self._promised.pop(program, None)
        match environment.state:
            case EnvironmentState.WAITING if program.backend_id is not None:
                self._begin(program, environment)
            case EnvironmentState.HIBERNATED if (
                program.acting or program.held or program.state is not State.QUEUED
            ):
                self._begin(program, environment)

    def may_restore(self, program: Program) -> bool:
        """Its turn has come: whether it can be given room now. If not, it has to be waited for."""
        environment = program.environment
        if environment is None or environment.state in USABLE or program.state is not State.QUEUED:
            return True
        environment.held_since = self._w.now
        self._begin(program, environment)
        self._w.note(program, "hold", "its turn has come, but its environment is not ready")
        return False

    def paused(self, program: Program) -> None:
        """It is in the queue now; if it stays there for long, its environment is paused too."""
        after = self._w.config.hibernate_after_s
        if after is not None and program.environment is not None:
            self._w.deadlines.set((Due.HIBERNATE, program), self._w.now + after)

    def paused_for_long(self, program: Program) -> None:
        environment = program.environment
        if environment is None or program.state is not State.QUEUED or program.acting:
            return
        if program in self._turns.near({program: None}, promised=0, begun_at=self._w.now):
            self.paused(program)  # it would have to be woken at once
            return
        if environment.take(Stage.HIBERNATE):
            self._tell(program, environment, "its program has been paused for long")
            assert environment.container_id is not None
            self._w.out.append(d.Hibernate(**self._whose(program), container_id=environment.container_id))

    def placed(self, program: Program) -> None:
        """It has room now, whether its environment is there or not: one that is too large never waits."""
        if program.environment is not None:
            program.environment.held_since = None
            self.settle(program)
        self.moved()

    def moved(self) -> None:
        """Programs have come, gone or been placed: others may be nearer to their turn."""
        if self._unready:
            self._soon()

    def ended(self, program: Program) -> None:
        """It needs none any longer; what is being prepared is abandoned, and reclaimed after that."""
        environment = program.environment
        if environment is None:
            return
        preparing = environment.state is EnvironmentState.PREPARING
        environment.take(Stage.END)
        environment.held_since = None
        self._unready.pop(program, None)
        self._promised.pop(program, None)
        self._w.deadlines.clear((Due.HIBERNATE, program))
        self._tell(program, environment, "its program is over")
        if preparing:
            self._w.out.append(d.AbandonEnvironment(**self._whose(program), name=environment.name))
        else:
            del self._known[program.id, program.generation]

    # --- what becomes of the environment

    def happened(self, event: EnvironmentEvent) -> None:
        """Whoever prepares environments has something to say about one."""
        program = self._known.get((event.program_id, event.generation))
        if program is None or program.environment is None:
            return
        environment = program.environment
        if environment.state is EnvironmentState.GONE:
            self._made(program, environment)
            del self._known[program.id, program.generation]
            return
        match event:
            case EnvironmentPrepared():
                self._prepared(program, environment, event)
            case EnvironmentFailed():
                self._failed(program, environment, event)
            case EnvironmentHibernated() if environment.take(Stage.HIBERNATED):
                self._unready[program] = None
                self._tell(program, environment, "paused with its program")
                self.settle(program)
                self._soon()
            case EnvironmentWoken() if environment.take(Stage.WOKEN):
                self._usable(program, environment, "it runs")
            case _:
                pass

    def _prepared(self, program: Program, environment: Environment, event: EnvironmentPrepared) -> None:
        w = self._w
        if not environment.take(Stage.PREPARED):
            return
        begun_at = w.now if environment.begun_at is None else environment.begun_at
        total = w.now - begun_at
        exposed_since = environment.exposed_since
        exposed = 0.0 if exposed_since is None else w.now - max(begun_at, exposed_since)
        environment.container_id = event.container_id
        environment.prepared_s = total
        self._turns.times.learn(environment.image, event.seconds)
        w.counters.environments_prepared += 1
        w.counters.prepared_exposed_s += exposed
        w.counters.prepared_hidden_s += total - exposed
        self._made(program, environment)
        self._usable(program, environment, f"prepared in {total:.1f} s")

    def _failed(self, program: Program, environment: Environment, event: EnvironmentFailed) -> None:
        w = self._w
        if environment.state is EnvironmentState.PREPARING:
            self._made(program, environment)
            if event.retryable and environment.attempts < ATTEMPTS:
                environment.take(Stage.POSTPONE)
                environment.not_before = w.now + RETRY_S * 2 ** (environment.attempts - 1)
                self._unready[program] = None
                self._look_at(environment.not_before)
                self._tell(program, environment, event.reason)
                return
        self._give_up(program, environment, event.reason)

    def _give_up(self, program: Program, environment: Environment, reason: str) -> None:
        if environment.take(Stage.FAIL):
            self._w.counters.environments_failed += 1
            self._unready.pop(program, None)
            self._promised.pop(program, None)
            self._usable(program, environment, reason)

    def _usable(self, program: Program, environment: Environment, reason: str) -> None:
        """Nobody has to wait for it any longer."""
        w = self._w
        self._tell(program, environment, reason)
        environment.held_since = None
        if program.state is State.QUEUED:
            self.paused(program)
        w.touch(program)
        w.freed = True

    def _made(self, program: Program, environment: Environment) -> None:
        """Nobody is preparing it any more."""
        self._preparing.pop(program, None)
        self._ledger.removal.made(self._key(environment), busy=False)

    # --- hosts

    def served(self, host: str | None) -> None:
        """Somebody does such work on this host from now on: what was under way there begins again."""
        for program in list(self._known.values()):
            environment = program.environment
            if environment is None or environment.wanted.host != host or environment.container_id is None:
                continue
            whose, container_id = self._whose(program), environment.container_id
            if environment.state is EnvironmentState.WAKING:
                self._w.out.append(d.Wake(**whose, container_id=container_id))
            elif environment.state is EnvironmentState.HIBERNATING:
                self._w.out.append(d.Hibernate(**whose, container_id=container_id))
        self.moved()

    def unserved(self, host: str | None) -> None:
        """Nobody does any longer: what was being prepared there is not."""
        for program in list(self._known.values()):
            environment = program.environment
            if environment is None or environment.wanted.host != host:
                continue
            if environment.state is EnvironmentState.GONE:
                self._made(program, environment)
                del self._known[program.id, program.generation]
            elif environment.take(Stage.POSTPONE):
                self._made(program, environment)
                self._unready[program] = None
                self._tell(program, environment, f"whoever prepared it on {host} is gone")
        self.moved()

    # --- whose turn is near

    def look(self) -> None:
        """Begin with those whose turn is near."""
        w = self._w
        if self._unready:
            self._look_at(w.now + LOOK_S)
            for program in list(self._turns.near(self._unready, len(self._promised), self._begun_at)):
                assert program.environment is not None
                urgent = program.backend_id is not None or program.held
                if urgent or len(self._preparing) < AT_ONCE:
                    self._begin(program, program.environment)

    # --- beginning

    def _begin(self, program: Program, environment: Environment) -> None:
        """Prepare or wake it, if that is what it needs."""
        w = self._w
        host = environment.wanted.host
        if environment.state is EnvironmentState.HIBERNATED:
            environment.take(Stage.WAKE)
            self._unready.pop(program, None)
            self._tell(program, environment, "its program's turn is near")
            assert environment.container_id is not None
            w.out.append(d.Wake(**self._whose(program), container_id=environment.container_id))
            return
        if environment.state is not EnvironmentState.WAITING or w.now < environment.not_before:
            return
        if environment.begun_at is None:
            environment.begun_at = w.now
        if host not in self._ledger.holdings.hosts:
            if w.now - environment.begun_at >= UNSERVED_S:
                self._give_up(program, environment, f"nobody prepares environments on {host}; {ADVICE}")
            return
        environment.take(Stage.PREPARE)
        environment.attempts += 1
        self._preparing[program] = None
        self._begun_at = w.now
        self._unready.pop(program, None)
        if program.last_backend_id is None:
            self._promised[program] = None
        self._ledger.declare(program, self._key(environment), keep=False)
        self._ledger.removal.made(self._key(environment), busy=True)
        self._tell(program, environment, "its program's turn is near")
        w.out.append(
            d.PrepareEnvironment(
                **self._whose(program),
                name=environment.name,
                spec=environment.wanted.spec,
                attempt=environment.attempts,
            )
        )

    def _soon(self) -> None:
        self._look_at(self._w.now + SOON_S)

    def _look_at(self, at: float) -> None:
        due = self._w.deadlines.get((Due.PREPARE, None))
        if due is None or at < due:
            self._w.deadlines.set((Due.PREPARE, None), at)

    # --- words

    def _key(self, environment: Environment) -> ThingKey:
        return ThingKey("environment", environment.name, environment.wanted.host)

    def _whose(self, program: Program) -> d.Whose:
        assert program.environment is not None
        return {
            "program_id": program.id,
            "generation": program.generation,
            "host": program.environment.wanted.host,
        }

    def _tell(self, program: Program, environment: Environment, reason: str) -> None:
        environment.reason = reason
        self._w.out.append(
            d.EnvironmentChanged(
                program_id=program.id,
                generation=program.generation,
                state=environment.state.value,
                container_id=environment.container_id,
                reason=reason,
            )
        )
