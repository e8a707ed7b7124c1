"""Which engine to stand in for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thunder_server.emulate.answers import Limits
from thunder_server.simulation.engine import Engine
from thunder_server.simulation.time_model import PRESETS, EnginePreset

_MAX_BLOCK_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine to stand in for. Sizes are tokens; ``None`` means the preset's.

    What does not fit together is a ``ValueError`` that says what would.

    >>> EngineSettings(kv_tokens=4096).limits
    Limits(max_model_len=4096, block_size=16)
    """

    model: str = "emulated"
    preset: EnginePreset = PRESETS["cpu-small"]
    kv_tokens: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("the model needs a name")
        if not 1 <= self.block_size <= _MAX_BLOCK_SIZE:
            raise ValueError(f"a block has 1 to {_MAX_BLOCK_SIZE} tokens, not {self.block_size}")
        if self.blocks < 1:
            raise ValueError(f"a KV cache of {self.kv_tokens} tokens has no block of {self.block_size}")
        if not 0 < self.speed < math.inf:
            raise ValueError(f"the speed must be above 0, not {self.speed}")
        longest = self.limits.max_model_len
        if not 2 <= longest <= self.blocks * self.block_size:
            raise ValueError(
                f"a longest sequence of {longest} tokens does not work: 2 to {self.blocks * self.block_size} "
                "do, which is what the KV cache holds"
            )

    @property
    def blocks(self) -> int:
        return (self.preset.kv_tokens if self.kv_tokens is None else self.kv_tokens) // self.block_size

    @property
    def limits(self) -> Limits:
        longest = self.max_model_len
        if longest is None:
            longest = min(self.preset.max_model_len, self.blocks * self.block_size)
        return Limits(max_model_len=longest, block_size=self.block_size)

    def build(self) -> Engine:
        """The engine, idle and with an empty cache."""
        return Engine(
            blocks=self.blocks,
            block_size=self.block_size,
            time=self.preset.time,
            max_num_seqs=self.preset.max_num_seqs,
            max_num_batched_tokens=self.preset.max_num_batched_tokens,
        )
