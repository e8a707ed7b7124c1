"""Where programs are: on a backend, or in the global queue; and the dispatch that follows from it."""

from __future__ import annotations

from itertools import islice
from typing import Final, assert_never

from thunder_server.core.backend import Backend, Charge
from thunder_server.core.call import Call
from thunder_server.core.decisions import Dispatch, Marked, Pause, Restore, Touch
from thunder_server.core.environments import Environments
from thunder_server.core.policies import Evict, KeepWarm, Place, Spare
from thunder_server.core.program import Phase, Program, State, Step
from thunder_server.core.world import Due, World

BALANCED: Final = 256
"""How many programs of a replica are looked at for moving one."""


class Placement:
    """Carries out what the policy wants, and keeps the backends' accounts."""

    def __init__(self, world: World, environments: Environments) -> None:
        self._w = world
        self._environments = environments

    # --- accounts

    def charge(self, program: Program) -> None:
        """Bring the accounts of all backends, and the queue, up to date with the program."""
        w = self._w
        places = {program.backend_id, *(call.backend_id for call in program.calls.values())}
        on = {backend_id for backend_id in places if backend_id is not None}
        for backend_id in on | program.charged:
            backend = w.fleet.get(backend_id)
            if backend is not None:
                claim = Charge(program.claim(backend_id), program.idle_since) if backend_id in on else None
                backend.charge(program, claim, w.now)
        program.charged = on
        self.seat(program)

    def grow(self, program: Program, call: Call, produced: int) -> None:
        """A running call has produced this much by now. As ``charge``, without looking at other calls."""
        before = program.excess(call)
        call.produced = max(call.produced, produced)
        backend = self._w.fleet.get(call.backend_id or "")
        if backend is not None and program in backend.charges:
            tokens, since = backend.charges[program]
            grown = program.excess(call) - before
            backend.charge(program, Charge(tokens + grown, since), self._w.now)

    def seat(self, program: Program) -> None:
        """Let the program sit in the global queue where the policy wants it, if it wants a backend."""
        w = self._w
        lost = program.state is State.UNPLACED and program.waiting > 0
        if lost:
            w.homeless[program] = None
        wants = (lost or program.state is State.QUEUED) and not program.held
        seat = w.policy.seat(program) if wants else None
        if seat is None:
            w.queue.discard(program)
        else:
            w.queue.put(program, seat)

    # --- serving

    def serve(self, program: Program) -> None:
        """Dispatch the waiting calls of a program as far as its place allows."""
        w = self._w
        for call in program.waiting_calls():
            if program.backend_id is not None and not self._may_go(call, w.fleet[program.backend_id]):
                self.unplace(program, f"{program.backend_id} does not take this call")
            elif program.state is State.PLACED and w.policy.prefix_aware:
                self._recheck(program, call)
            if program.state is not State.PLACED:
                if w.held_since is not None:
                    break
                place = w.policy.at_once(w.fleet, program, call, w.now)
                if place is None:
                    w.freed = True  # have the queue looked at
                    break
                if program.state is State.MARKED:
                    self.lift(program, place.reason)
                else:
                    self._place(program, place.backend, place.reason)
            self._dispatch(program, call)
        self.charge(program)

    def look_again(self) -> None:
        """What could be served, and where, has changed for everybody in the queue: rare."""
        for program in self._w.queue:
            self.seat(program)
            if program.waiting and program.state is not State.PLACED:
                self.serve(program)
        self._w.freed = True

    def refill(self) -> None:
        """Give programs in the queue their chance."""
        w = self._w
        if w.held_since is not None:
            return
        for backend in w.fleet.values():
            if backend.marked and not w.policy.overfull(backend, w.now):
                for program in list(backend.marked):
                    self.lift(program, f"{backend.id} is within its limit again")
                    self.serve(program)
        if w.queue:
            w.queue.tidy()
            for intent in w.policy.restore(w.fleet, w.queue, w.now):
                match intent:
                    case Evict(program, reason):
                        self.evict(program, reason)
                    case KeepWarm(program, reason):
                        self.touch(program, reason)
                    case Place(program) if not self._environments.may_restore(program):
                        self.seat(program)
                    case Place(program, backend, reason):
                        self._place(program, backend, reason)
                        self.serve(program)
                    case _:
                        assert_never(intent)
            if (until := w.router.gathering(w.now)) is not None:
                w.deadlines.set((Due.GATHERED, None), until)

    def park(self) -> None:
        """Programs that found no room, and have nothing running, wait in the queue from now on."""
        homeless, self._w.homeless = self._w.homeless, {}
        for program in homeless:
            if program.state is State.UNPLACED and program.waiting and not program.running:
                self.pause(program, self._why_waiting(program))

    # --- steps

    def _place(self, program: Program, backend: Backend, reason: str) -> None:
        """Give the program this backend."""
        w = self._w
        was_queued = program.state is State.QUEUED
        newcomer = program.last_backend_id is None
        moved = not newcomer and program.last_backend_id != backend.id
        paused_s = w.now - program.queued_at if program.queued_at is not None else 0.0
        context = program.need
        program.take(Step.PLACE)
        program.backend_id = program.last_backend_id = backend.id
        program.queued_at = None
        program.placed_at = w.now
        if w.router.settings.shadow:
            self._compare(program, backend)
        backend.programs[program] = None
        if program.prompt is not None:
            backend.sharing.hold(program, program.prompt.messages)
        w.counters.moves += moved
        self._environments.placed(program)
        if was_queued:
            w.counters.admitted += newcomer
            w.counters.restores += not newcomer
            restore = Restore(
                program_id=program.id,
                generation=program.generation,
                backend_id=backend.id,
                context_tokens=context,
                paused_s=paused_s,
                moved=moved,
                reason=reason,
            )
            w.tell(program, restore, f"restored on {backend.id}: {reason}")
        else:
            w.note(program, "place", f"placed on {backend.id}: {reason}")

    def unplace(self, program: Program, reason: str) -> None:
        """Take the program off its backend; it goes on from nowhere, with no KV anywhere."""
        backend = self._w.fleet[program.backend_id or ""]
        was_marked = program.state is State.MARKED
        self._leave(program)
        program.take(Step.UNPLACE)
        if was_marked:
            self._tell_mark(program, backend, reason)
        else:
            self._w.note(program, "unplace", reason)
        self.charge(program)

    def pause(self, program: Program, reason: str) -> None:
        """Put the program into the global queue."""
        w = self._w
        context = program.need
        backend_id = self._leave(program)
        program.take(Step.PAUSE)
        program.queued_at = w.now
        if backend_id is None:
            w.counters.queued += 1
        else:
            w.counters.pauses += 1
            program.pauses += 1
        pause = Pause(
            program_id=program.id,
            generation=program.generation,
            backend_id=backend_id,
            context_tokens=context,
            reason=reason,
        )
        w.tell(program, pause, reason)
        self.charge(program)
        self._environments.paused(program)

    def evict(self, program: Program, reason: str) -> None:
        """Pause the program now, or when its running calls end."""
        if not program.running:
            self.pause(program, f"paused: {reason}")
            return
        backend = self._w.fleet[program.backend_id or ""]
        program.take(Step.MARK)
        backend.marked[program] = None
        self._w.counters.marks += 1
        self._tell_mark(program, backend, f"to be paused when its call ends: {reason}")

    def touch(self, program: Program, reason: str) -> None:
        """Have the backend use the context of an acting program."""
        w = self._w
        backend = w.fleet[program.backend_id or ""]
        program.touched_at = w.now
        w.router.touched(program, backend)
        w.counters.touches += 1
        w.tell(program, Touch(program_id=program.id, backend_id=backend.id), f"kept warm: {reason}")
        self.charge(program)

    def lift(self, program: Program, reason: str) -> None:
        """Let a marked program stay, and serve what it has waiting."""
        backend = self._w.fleet[program.backend_id or ""]
        program.take(Step.LIFT)
        del backend.marked[program]
        self._tell_mark(program, backend, f"stays: {reason}")

    def tick(self) -> None:
        """The policy looks at everything, if it ever does."""
        w = self._w
        if w.policy.interval_s is None:
            return
        w.counters.ticks += 1
        for intent in w.policy.tick(w.fleet, w.now):
            match intent:
                case Evict(program, reason):
                    self.evict(program, reason)
                case Spare(program, reason):
                    self.lift(program, reason)
                    self.serve(program)
                case _:
                    assert_never(intent)
        if w.policy.prefix_aware:
            self._balance()
        w.freed = True

    def _balance(self) -> None:
        """Once replicas have been unevenly full for long, one acting program at a time goes from the fullest
        to the emptiest: of those that have been idle for longest the one with least to compute again."""
        w = self._w
        pair = w.router.uneven(w.fleet.serving(None), w.now)
        if pair is None or w.queue:
            return  # whoever waits evens it out
        full, empty = pair
        room = min(empty.limit - empty.used(w.now), (full.used(w.now) - empty.used(w.now)) / 2)
        idle = [
            program
            for program in islice(full.programs, BALANCED)
            if program.phase is Phase.ACTING and empty.serves(program.model) and program.context <= room
        ]
        if idle:
            program = min(idle, key=lambda program: w.router.resident(program, full, w.now))
            self.unplace(program, f"{full.id} has been much fuller than {empty.id}")
            self._place(program, empty, f"{full.id} has been much fuller for a while")
            self.charge(program)

    def leave_marked(self, program: Program) -> None:
        """The last running call of a marked program has ended: it is paused, if that is needed still."""
        backend = self._w.fleet[program.backend_id or ""]
        if self._w.policy.overfull(backend, self._w.now):
            self.pause(program, f"paused after its call: {backend.id} is over its limit")
        else:
            self.lift(program, f"{backend.id} is within its limit again")
            self.serve(program)

    def end(self, program: Program) -> None:
        """The program has ended: it holds nothing any longer."""
        self._leave(program)
        program.take(Step.END)
        self.charge(program)
        self._environments.moved()
        self._w.freed = True

    # --- parts of steps

    def _may_go(self, call: Call, backend: Backend) -> bool:
        """Whether a call may go where its program is."""
        if not backend.serves(call.request.model) or backend.id in call.tried:
            return False
        return not self._w.policy.outgrown(self._w.fleet, backend, call)

    def _recheck(self, program: Program, call: Call) -> None:
        """Before a long prompt goes where its program is: whether it had better go elsewhere by now."""
        w = self._w
        if program.running or program.waiting > 1:
            return
        need = max(1, program.need)
        candidates = [
            backend
            for backend in w.fleet.serving(call.request.model, call.tried)
            if backend.id == program.backend_id or backend.limit - backend.used(w.now) >= need
        ]
        better = w.router.recheck(program, call, candidates, w.now)
        if better is not None:
            self.unplace(program, f"its prefix is gone from {program.backend_id}")
            self._place(program, better.backend, better.reason)

    def _compare(self, program: Program, backend: Backend) -> None:
        """In shadow mode: say where the router would have had it."""
        w = self._w
        need = max(1, program.need)
        candidates = [
            other
            for other in w.fleet.open_to(program)
            if other is backend or other.limit - other.used(w.now) >= need
        ]
        preferred = w.router.compare(program, candidates, backend, w.now)
        if preferred is not None:
            w.out.append(preferred)

    def _why_waiting(self, program: Program) -> str:
        w = self._w
        if w.held_since is not None:
            return "the engines are getting new weights"
        if not w.fleet.open_to(program):
            return "no healthy backend"
        if w.policy.prefix_aware and w.router.gathers(program, w.now) is not None:
            return "lets another call go first, which computes what the two have in common"
        return "no backend has room"

    def _leave(self, program: Program) -> str | None:
        backend_id = program.backend_id
        if backend_id is not None:
            backend = self._w.fleet[backend_id]
            del backend.programs[program]
            backend.marked.pop(program, None)
            backend.sharing.drop(program)
            charge = backend.charges.get(program)
            self._w.flow.freed(charge.tokens if charge else 0, self._w.now)
            self._w.freed = True
        program.backend_id = None
        program.resident = 0
        return backend_id

    def _dispatch(self, program: Program, call: Call) -> None:
        w = self._w
        backend = w.fleet[program.backend_id or ""]
        waited = w.now - call.arrived_at
        w.dispatched += 1
        call.order = w.dispatched
        call.backend_id = backend.id
        program.running += 1
        backend.calls[call] = None
        w.counters.calls_dispatched += 1
        w.counters.waited_s += waited - call.waited_s
        program.waited_s += waited - call.waited_s
        call.waited_s = waited
        program.longest_wait_s = max(program.longest_wait_s, waited)
        w.stop_waiting(call)
        w.router.dispatched(call, backend, w.now)
        prompt = call.prompt
        backend.sharing.hold(program, prompt.messages)
        dispatch = Dispatch(call_id=call.id, program_id=program.id, backend_id=backend.id, waited_s=waited)
        expected = (
            f"; {call.predicted} of {prompt.tokens} tokens should be cached" if len(prompt.messages) else ""
        )
        w.tell(program, dispatch, f"running on {backend.id}{expected}")

    def _tell_mark(self, program: Program, backend: Backend, reason: str) -> None:
        marked = Marked(
            program_id=program.id,
            generation=program.generation,
            backend_id=backend.id,
            marked=program.state is State.MARKED,
            reason=reason,
        )
        self._w.tell(program, marked, reason)
