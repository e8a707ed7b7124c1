#!/usr/bin/env python3
"""Make a model directory that a real engine can serve on a machine without a GPU or a model hub.

    python benchmarks/tiny_model.py DIR
    vllm serve DIR --load-format dummy …

A Llama of 50 million parameters: configuration and a tokenizer trained here on made-up words, no weights (the
engine draws random ones). What it says is noise; its scheduler, KV cache and metrics are the engine's own.
Runs in the engine's environment: needs `tokenizers`, which vLLM brings.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MAX_CONTEXT = 16_384
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def made_up_text(lines: int = 4000) -> Iterator[str]:
    """Text with the statistics of text: frequent short words, rare long ones. The same at every call."""
    chance = random.Random(7)
    words = ["".join(chance.choices("aeioulnrstdm", k=chance.randint(2, 9))) for _ in range(2000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(lines):
        yield " ".join(chance.choices(words, weights, k=40)) + ".\n"


def train_tokenizer(vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(made_up_text(), trainer)
    return tokenizer


def write_model(directory: Path, vocabulary: int = 2048) -> None:
    """Write tokenizer and configuration to ``directory``, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocabulary)
    tokenizer.save(str(directory / "tokenizer.json"))
    pad, _, end = (tokenizer.token_to_id(token) for token in SPECIAL)
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_CONTEXT,
            "pad_token": SPECIAL[0],
            "eos_token": SPECIAL[2],
            "chat_template": CHAT_TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 3072,
            "vocab_size": -(-tokenizer.get_vocab_size() // 64) * 64,
            "max_position_embeddings": MAX_CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "pad_token_id": pad,
            "eos_token_id": end,
        },
        "generation_config.json": {"pad_token_id": pad, "eos_token_id": end},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    write_model(parser.parse_args().directory)
