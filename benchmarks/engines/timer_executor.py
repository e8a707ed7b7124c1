"""vLLM with a timer for a device: API server, scheduler, block manager and prefix cache are vLLM's own.

vLLM splits the work at its `Executor`: in every step the scheduler decides how many tokens of which requests
are computed, and hands that to the executor, which runs the model and returns sampled tokens. All that
matters to KV memory (admission, chunked prefill, block allocation, prefix hits, eviction, preemption) is on
the scheduler's side. So an executor that computes nothing and only takes its time leaves it as it is, and a
machine without a GPU runs several replicas at the speed of any device whose step time is known:

    step = base + per prefilled token + per decoding sequence + per token of context in the batch

which are the four terms of the simulator's `TimeModel`. They are set by the environment:

    TIMER_BASE_MS (20)   TIMER_PREFILL_US (400)   TIMER_SEQUENCE_US (750)   TIMER_CONTEXT_NS (0)

A step ends that long after it began, so that the time the host takes for it counts in, as on a real device,
which works while the host prepares. Sampled tokens are whole words with a space before them: the text that a
client sends back in its next prompt becomes the very same tokens, and so a prefix hit.

    PYTHONPATH=benchmarks/engines vllm serve MODEL … --no-async-scheduling \\
        --distributed-executor-backend timer_executor.TimerExecutor

Written against vLLM 0.32. The executor interface is vLLM's own business and changes between its versions: one
that asks for more than is here says so by a NotImplementedError or AttributeError when it starts.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

PLENTY_OF_BYTES = 64 << 30  # what bounds the cache is --num-gpu-blocks-override


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per unit of work in a step."""

    base: float
    per_prefill_token: float
    per_sequence: float
    per_context_token: float

    @classmethod
    def from_environment(cls) -> StepTime:
        def read(name: str, default: float, unit: float) -> float:
            return float(os.environ.get(f"TIMER_{name}", default)) * unit

        return cls(
            base=read("BASE_MS", 20, 1e-3),
            per_prefill_token=read("PREFILL_US", 400, 1e-6),
            per_sequence=read("SEQUENCE_US", 750, 1e-6),
            per_context_token=read("CONTEXT_NS", 0, 1e-9),
        )

    def seconds(self, *, prefill: int, decoding: int, context: int) -> float:
        return (
            self.base
            + self.per_prefill_token * prefill
            + self.per_sequence * decoding
            + self.per_context_token * context
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is remembered of a request: how long its prompt is, and where the words of its answer begin."""

    tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Share:
    """A request's part of a step: ``computed`` tokens have KV already, ``scheduled`` get it now."""

    request_id: str
    prompt: Prompt
    generated: int
    computed: int
    scheduled: int

    @property
    def samples(self) -> bool:
        """The next token comes when all that there are have KV."""
        return self.computed + self.scheduled >= self.prompt.tokens + self.generated

    @property
    def decodes(self) -> bool:
        """It goes on by one token, rather than prefill a prompt, or all of it again after a preemption."""
        return self.scheduled == 1 and self.generated > 0 and self.samples


class TimerExecutor(Executor):
    """Steps that take their time and compute nothing."""

    def _init_executor(self) -> None:
        self._time = StepTime.from_environment()
        self._prompts: dict[str, Prompt] = {}
        self._words = _whole_words(self.model_config.tokenizer)

    # --- a step

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        begun = time.perf_counter()
        output = self._step(scheduler_output, begun)
        return _done(output) if non_block else output

    def _step(self, plan: Any, begun: float) -> ModelRunnerOutput:
        for request_id in plan.finished_req_ids:
            self._prompts.pop(request_id, None)
        if not plan.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        shares = self._shares(plan)
        decoding = sum(share.decodes for share in shares)
        seconds = self._time.seconds(
            prefill=plan.total_num_scheduled_tokens - decoding,
            decoding=decoding,
            context=sum(share.computed + share.scheduled for share in shares),
        )
        time.sleep(max(0.0, begun + seconds - time.perf_counter()))
        return ModelRunnerOutput(
            req_ids=[share.request_id for share in shares],
            req_id_to_index={share.request_id: index for index, share in enumerate(shares)},
            sampled_token_ids=[[self._word(share)] if share.samples else [] for share in shares],
        )

    def _shares(self, plan: Any) -> list[Share]:
        progress: dict[str, tuple[int, int]] = {}  # tokens with KV, tokens generated
        for new in plan.scheduled_new_reqs:
            tokens = new.prompt_token_ids or ()
            self._prompts[new.req_id] = Prompt(len(tokens), _seed(tokens))
            progress[new.req_id] = (new.num_computed_tokens, 0)
        known = plan.scheduled_cached_reqs
        counts = zip(known.num_computed_tokens, known.num_output_tokens, strict=True)
        progress |= dict(zip(known.req_ids, counts, strict=True))
        return [
            Share(
                request_id=request_id,
                prompt=self._prompts[request_id],
                generated=progress[request_id][1],
                computed=progress[request_id][0],
                scheduled=scheduled,
            )
            for request_id, scheduled in plan.num_scheduled_tokens.items()
        ]

    def _word(self, share: Share) -> int:
        """The same prompt is always answered by the same words."""
        return self._words[(share.prompt.seed + share.generated * 7919) % len(self._words)]

    # --- what the engine asks for at start-up

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        model = self.model_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(self.parallel_config),
            head_size=model.get_head_size(),
            dtype=model.dtype,
        )
        layers = range(model.get_num_layers(self.parallel_config))
        return [{f"model.layers.{layer}.self_attn.attn": spec for layer in layers}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBHNC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        from vllm.v1.worker.worker_base import record_kv_cache_layout

        record_kv_cache_layout(self.vllm_config.cache_config, layout_name)

    def determine_available_memory(self) -> list[int]:
        return [PLENTY_OF_BYTES]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There is no cache to make: only block numbers are ever handed out."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model."""

    @property
    def supported_tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("generate",)

    def supports_draft_weight_updates(self) -> bool:
        return False

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return False

    def take_draft_token_ids(self) -> None:
        return None

    def get_kv_connector_handshake_metadata(self) -> list[dict[Any, Any]]:
        return [{}]

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """There are no workers; whatever they are asked is answered by nothing."""
        return _done([None]) if non_block else [None]

    def check_health(self) -> None:
        """A timer is always well."""

    def shutdown(self) -> None:
        """Nothing was started."""


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _seed(prompt: Sequence[int]) -> int:
    digest = hashlib.blake2b(repr(list(prompt[-64:])).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def _whole_words(model: str) -> list[int]:
    """Tokens that are a space and letters; ``Ġ`` is how byte-level vocabularies write the space."""
    vocabulary = Tokenizer.from_file(str(Path(model) / "tokenizer.json")).get_vocab()
    words = sorted(
        token
        for text, token in vocabulary.items()
        if text[0] == "Ġ" and text[1:].isascii() and text[1:].isalpha()
    )
    if not words:
        raise ValueError(f"the tokenizer in {model} has no token that is a space and letters")
    return words
