"""The life of a call: arrival, dispatch, progress and exactly one end."""

from __future__ import annotations

from thunder_server.core.call import Call
from thunder_server.core.decisions import Cancel, Dispatch, Refusal, Refuse, TokenizersDiffer
from thunder_server.core.events import (
    CallArrived,
    CallConnectFailed,
    CallEnd,
    CallFinished,
    CallProgressed,
    CallTokenized,
    Outcome,
)
from thunder_server.core.placement import Placement
from thunder_server.core.program import Program
from thunder_server.core.world import World

ADMISSION_RETRY_S = 5.0
"""What a client that waited in vain is told to wait before it asks again."""

FAILED = frozenset({CallEnd.ENGINE_REFUSED, CallEnd.BACKEND_FAILED})
"""Ends that count as failed; the other bad ones count as cancelled."""


class Calls:
    """Keeps the calls' and their programs' accounts; every end goes through ``_end``."""

    def __init__(self, world: World, placement: Placement) -> None:
        self._w = world
        self._placement = placement

    # --- what happens to calls

    def arrived(self, program: Program, event: CallArrived) -> None:
        """A call of this program."""
        w = self._w
        queued_at = self._supersede(program, event)
        max_wait = next(
            wait for wait in (event.max_wait_s, program.max_wait_s, w.config.max_wait_s) if wait is not None
        )
        estimate = w.sizer.estimate(program, event.prompt_chars)
        call = Call(
            request=event,
            prompt=w.router.prompt(event.messages, event.blocks, estimate),
            estimate=estimate,
            deadline=w.now + max_wait,
            queued_at=queued_at,
        )
        program.calls[call.id] = call
        program.call_totals.total += 1
        alone = len(program.calls) == 1 and not program.acting and program.tool_finished_at is None
        if alone and program.context_order:
            program.gaps.learn(w.now - program.acting_since)
        program.tool_finished_at = None
        program.model = event.model
        w.calls[call.id] = (program, call)
        w.counters.calls_arrived += 1
        w.touch(program)
        self._placement.serve(program)
        if call.backend_id is None:
            w.start_waiting(call)
            if max_wait <= 0:
                w.impatient.append(call)

    def connect_failed(self, event: CallConnectFailed) -> None:
        """Nothing was sent: the call goes elsewhere, or there is nowhere else.

        A refused connection is better evidence than the last poll, so the backend has been taken for
        down by now (see ``Scheduler``).
        """
        w = self._w
        program, call = w.calls[event.call_id]
        self._stop_running(program, call)
        call.tried.add(event.backend_id)
        w.start_waiting(call)
        w.touch(program)
        if w.fleet.serving(call.request.model, call.tried):
            self._placement.serve(program)
        else:
            self.refuse(
                program,
                call,
                Refusal.BACKEND_ERROR,
                f"{event.backend_id} refused the connection, and no other healthy backend can take the call",
            )

    def is_running(self, call_id: str, backend_id: str) -> bool:
        """Whether the call is live and was sent to this backend."""
        found = self._w.calls.get(call_id)
        return found is not None and found[1].backend_id == backend_id

    def tokenized(self, event: CallTokenized) -> None:
        """The blocks of a prompt have become known; where they are may decide where a waiting call goes."""
        found = self._w.calls.get(event.call_id)
        if found is not None:
            _, call = found
            call.prompt.blocks = event.blocks
            self._w.freed |= call.backend_id is None

    def progressed(self, event: CallProgressed) -> None:
        """A running call has grown."""
        found = self._w.calls.get(event.call_id)
        if found is not None:
            program, call = found
            self._placement.grow(program, call, event.completion_tokens)

    def finished(self, event: CallFinished) -> None:
        """A call is over, other than by a decision of ours."""
        w = self._w
        found = w.calls.get(event.call_id)
        if found is None:
            return
        program, call = found
        backend_id = call.backend_id
        # What was due before this event may have dispatched it: nobody is there any longer to perform that.
        w.out = [said for said in w.out if not (isinstance(said, Dispatch) and said.call_id == call.id)]
        self._end(program, call)
        w.counters.calls_ended[event.end] += 1
        if event.end in FAILED:
            program.call_totals.failed += 1
        elif event.end is not CallEnd.COMPLETED:
            program.call_totals.cancelled += 1
        for totals in (program.token_totals, w.counters.tokens):
            totals.prompt += event.prompt_tokens or 0
            totals.completion += event.completion_tokens or 0
            totals.cached += event.cached_tokens or 0
        self._learn_turnover(program, call, event, backend_id)
        self._learn_context(program, call, event, backend_id)
        self._learn_cache(program, call, event, backend_id)
        w.note(program, "finished", _HOW_ENDED[event.end] + _as_predicted(call, event))
        self._close_if_final(program, call)

    def waited_too_long(self, call: Call) -> None:
        """The call's own patience is over."""
        w = self._w
        program, _ = w.calls[call.id]
        waited = w.now - call.arrived_at
        if w.held_since is not None:
            what = "the engines are getting new weights, and nothing is sent"
        elif w.fleet.serving(call.request.model, call.tried):
            what = "no backend has room"
        else:
            what = "no healthy backend can serve it"
        message = f"{what} after {waited:.1f} s of waiting; retry later, or raise the maximal wait"
        self.refuse(program, call, Refusal.ADMISSION_TIMEOUT, message, ADMISSION_RETRY_S)

    def refuse_impatient(self) -> None:
        """Those that would not wait at all, and were not served at once."""
        impatient, self._w.impatient = self._w.impatient, []
        for call in impatient:
            if call.id in self._w.calls and call.backend_id is None:
                self.waited_too_long(call)

    def unserved(self, model: str | None) -> None:
        """No backend that could serve the model has been there for too long."""
        w = self._w
        after = w.config.no_backend_after_s
        what = f"no healthy backend for model {model!r}" if w.fleet.any_healthy() else "no healthy backend"
        for call in list(w.waiting.get(model, ())):
            program, _ = w.calls[call.id]
            self.refuse(program, call, Refusal.NO_BACKEND, f"{what} for {after:g} s; retry later", after)

    # --- how the core ends calls

    def drop(self, program: Program, message: str) -> None:
        """Refuse or cancel whatever the program has under way."""
        for call in list(program.calls.values()):
            self._stop(program, call, Refusal.PROGRAM_TERMINATED, message)
            program.call_totals.cancelled += 1

    def refuse(
        self,
        program: Program,
        call: Call,
        refusal: Refusal,
        message: str,
        retry_after_s: float | None = None,
    ) -> None:
        """End a waiting call."""
        self._stop(program, call, refusal, message, retry_after_s)
        program.call_totals.failed += 1
        self._close_if_final(program, call)

    def _supersede(self, program: Program, retry: CallArrived) -> float:
        """End the first attempt of a call that comes again, as if it had never been.

        Returns since when the call counts as queued: a client that retries does not lose its place.
        """
        w = self._w
        generation: Program | None = program if retry.digest else None
        while generation is not None:
            for call in generation.calls.values():
                age = w.now - call.arrived_at
                again = retry.is_retry or age > w.config.supersede_after_s
                if again and call.request.digest == retry.digest:
                    generation.call_totals.total -= 1
                    w.counters.calls_arrived -= 1
                    self._stop(
                        generation, call, Refusal.SUPERSEDED, "a retry of this request has taken its place"
                    )
                    return call.queued_at
            generation = generation.previous
        return w.now

    def _stop(
        self,
        program: Program,
        call: Call,
        refusal: Refusal,
        message: str,
        retry_after_s: float | None = None,
    ) -> None:
        w = self._w
        backend_id = call.backend_id
        self._end(program, call)
        w.counters.refusals[refusal] += 1
        if backend_id is None:
            refuse = Refuse(
                call_id=call.id,
                program_id=program.id,
                refusal=refusal,
                message=message,
                retry_after_s=retry_after_s,
            )
            w.tell(program, refuse, message)
        else:
            cancel = Cancel(
                call_id=call.id,
                program_id=program.id,
                backend_id=backend_id,
                refusal=refusal,
                message=message,
            )
            w.tell(program, cancel, message)

    # --- accounts

    def _end(self, program: Program, call: Call) -> None:
        w = self._w
        if call.backend_id is None:
            waited = w.now - call.arrived_at
            program.waited_s += waited - call.waited_s
            program.longest_wait_s = max(program.longest_wait_s, waited)
            w.stop_waiting(call)
        else:
            self._stop_running(program, call)
        del program.calls[call.id], w.calls[call.id]
        w.freed = True
        w.touch(program)

    def _stop_running(self, program: Program, call: Call) -> None:
        backend = self._w.fleet.get(call.backend_id or "")
        if backend is not None:
            backend.calls.pop(call, None)  # gone with the old one if it was removed and added again
            backend.cache.settled(call.coming)
        program.running -= 1
        call.backend_id = None

    def _learn_turnover(
        self, program: Program, call: Call, event: CallFinished, backend_id: str | None
    ) -> None:
        """How contexts grow on the backend, and how fast it is: from answers that say enough of it."""
        backend = self._w.fleet.get(backend_id or "")
        prompt, cached, completion = event.prompt_tokens, event.cached_tokens, event.completion_tokens
        if backend is None or event.end is not CallEnd.COMPLETED or prompt is None or completion is None:
            return
        now = self._w.now
        if program.resident and backend_id == program.backend_id:
            grown = max(0, prompt + completion - program.resident)
            backend.turnover.grew(grown, capacity=backend.limit, at=now)
        if cached is None:
            return
        seconds = now - call.arrived_at - call.waited_s
        backend.turnover.learn(
            seconds=seconds,
            computed=prompt - cached,
            completion=completion,
            reasoning=min(1.0, backend.reasoning_tokens / backend.limit),
        )
        alone_s = backend.turnover.alone_s(computed=prompt - cached, completion=completion)
        backend.pace.learn(seconds=seconds, alone_s=alone_s, at=now)

    def _learn_context(
        self, program: Program, call: Call, event: CallFinished, backend_id: str | None
    ) -> None:
        """The latest-dispatched call that ended with usage is the program's context from now on.

        It may be smaller than before: agents compact. Without usage a 2xx leaves what was guessed, and
        anything else leaves the context as it was.
        """
        if event.prompt_tokens is not None:
            self._w.sizer.learn(program, call, event.prompt_tokens)
            completion = call.produced if event.completion_tokens is None else event.completion_tokens
            context = event.prompt_tokens + completion
        elif event.end is CallEnd.COMPLETED:
            context = call.tokens
        else:
            return
        if call.order > program.context_order:
            program.context_order = call.order
            program.context = context
            if backend_id == program.backend_id:
                program.resident = context

    def _learn_cache(self, program: Program, call: Call, event: CallFinished, backend_id: str | None) -> None:
        """What the prompt was in tokens, how much of it was cached, and that all of it is now."""
        w = self._w
        backend = w.fleet.get(backend_id or "")
        tokens = event.prompt_tokens
        if backend is None or event.end is not CallEnd.COMPLETED or tokens is None:
            return
        other = w.router.learn(call, tokens, backend)
        if other is not None:
            w.out.append(TokenizersDiffer(backend_ids=(other, backend.id), path=call.request.path))
        w.router.answered(call, backend, event.completion_tokens or call.produced, event.cached_tokens)
        if call.order == program.context_order:
            program.prompt = call.prompt
            if program.backend_id == backend_id:
                backend.sharing.hold(program, call.prompt.messages)

    def _close_if_final(self, program: Program, call: Call) -> None:
        if (call.request.final or program.anonymous) and program.ending is None:
            program.ending = Outcome.SUCCESS


_HOW_ENDED = {
    CallEnd.COMPLETED: "its call was completed",
    CallEnd.ENGINE_REFUSED: "the engine refused its call",
    CallEnd.BACKEND_FAILED: "the backend failed during its call",
    CallEnd.CLIENT_GONE: "the client left during its call",
    CallEnd.CANCELLED: "its call was cancelled",
}


def _as_predicted(call: Call, event: CallFinished) -> str:
    if event.cached_tokens is None or not len(call.prompt.messages):
        return ""
    return f"; {event.cached_tokens} tokens of its prompt were cached, {call.predicted} had been expected"
