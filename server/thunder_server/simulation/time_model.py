"""How long one step of an engine takes, and the engines we have figures for.

A step runs every sequence of the batch once: prefills in chunks, decodes by one token. Four terms explain
what has been measured of real engines:

    step = base + per_prefill_token · prefill tokens + per_sequence · decoding sequences
                + per_resident_token · context tokens of the sequences in the batch

The last one is the cost of reading the KV cache, and why decoding slows down as contexts grow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """Seconds per unit of work in one step.

    >>> TimeModel(base=0.02, per_prefill_token=4e-4).step_seconds(prefill=100, decoding=0, resident=100)
    0.06
    """

    base: float
    per_prefill_token: float = 0.0
    per_sequence: float = 0.0
    per_resident_token: float = 0.0

    def step_seconds(self, *, prefill: int, decoding: int, resident: int) -> float:
        """Duration of a step over ``prefill`` new prompt tokens, ``decoding`` sequences that produce one
        token each, and ``resident`` context tokens in all the sequences of the batch."""
        return (
            self.base
            + self.per_prefill_token * prefill
            + self.per_sequence * decoding
            + self.per_resident_token * resident
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """An engine on its hardware: how fast it is and what it holds. Sizes are tokens."""

    name: str
    about: str
    time: TimeModel
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    def call_seconds(self, prompt: int, new: int, output: int) -> float:
        """How long a call takes by itself, of whose ``prompt`` tokens only ``new`` have to be computed.

        >>> round(PRESETS["cpu-small"].call_seconds(prompt=3000, new=100, output=11), 4)
        0.2675
        """
        chunks = -(-new // self.max_num_batched_tokens)
        steps = output - 1  # the first token comes with the prefill
        time = self.time
        return (
            (chunks + steps) * time.base
            + new * time.per_prefill_token
            + steps * time.per_sequence
            + (chunks * (prompt - new / 2) + steps * (prompt + output / 2)) * time.per_resident_token
        )


PRESETS = {
    preset.name: preset
    for preset in (
        # Qwen3-Coder-30B FP8 on a pair of H100. Published: decode-only steps of 10, 20, 38 and 42 ms at
        # 0.29, 0.74, 1.34 and 1.68 M resident tokens; least squares give 3.0 ms + 24.2 ns a token (residuals
        # at most 2.6 ms). Mixed steps: 46 ms + 29 ms per 1,000 prefill tokens at batches of 26 to 39 with
        # the cache full; what 3.0 + 24.2 · 1.68 leaves of the 46, over 32.5 sequences, is 71 µs each.
        EnginePreset(
            name="h100-qwen30b",
            about="Qwen3-Coder-30B FP8 on two H100",
            time=TimeModel(
                base=3.0e-3, per_prefill_token=29e-6, per_sequence=71e-6, per_resident_token=24.2e-9
            ),
            kv_tokens=1_700_000,
            max_model_len=262_144,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
        ),
        # A 52M-parameter model under vLLM on two CPU cores.
        EnginePreset(
            name="cpu-small",
            about="a 52M-parameter model on two CPU cores",
            time=TimeModel(base=20e-3, per_prefill_token=400e-6, per_sequence=750e-6),
            kv_tokens=16_384,
            max_model_len=8192,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
        ),
    )
}
