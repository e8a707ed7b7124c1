"""What vLLM's metrics page says of capacity and load."""

from __future__ import annotations

import pytest

from thunder_server.backends.reading import Load
from thunder_server.backends.vllm import read_metrics

ONE = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1025",num_cpu_blocks="None"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 900.0
"""


def test_one_engine() -> None:
    assert read_metrics(ONE) == Load(
        capacity_tokens=16384,
        used_tokens=8192,
        running=3,
        waiting=2,
        prefix_hits=900.0,
        prefix_queries=1000.0,
    )


def test_several_engines_count_as_their_sum() -> None:
    second = "\n".join(line for line in ONE.splitlines() if not line.startswith("#"))
    second = second.replace('engine="0"', 'engine="1"').replace("0.5", "0.25").replace('"1025"', '"513"')
    assert read_metrics(ONE + second) == Load(
        capacity_tokens=16384 + 8192,
        used_tokens=8192 + 2048,
        running=6,
        waiting=4,
        prefix_hits=1800.0,
        prefix_queries=2000.0,
    )


def test_older_names() -> None:
    old = ONE.replace("kv_cache_usage", "gpu_cache_usage").replace("prefix_cache", "gpu_prefix_cache")
    assert read_metrics(old) == read_metrics(ONE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('num_gpu_blocks="1025"', 'num_gpu_blocks="None"'),
        ('num_gpu_blocks="1025"', 'num_gpu_blocks="0"'),
        ('num_gpu_blocks="1025"', 'num_gpu_blocks="-5"'),
        ('num_gpu_blocks="1025"', 'gpu_blocks="1025"'),
        ('block_size="16"', 'block_size="NaN"'),
        ("cache_config_info{", "cache_configuration{"),
        ("cache_config_info{", "cache_config_info{{"),
    ],
)
def test_unreadable_capacity_is_unknown(before: str, after: str) -> None:
    load = read_metrics(ONE.replace(before, after))
    assert load is not None
    assert (load.capacity_tokens, load.used_tokens, load.running) == (None, None, 3)


def test_capacity_of_which_a_part_is_unknown_is_unknown() -> None:
    starting = 'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="None"} 1.0\n'
    load = read_metrics(ONE + starting)
    assert load is not None
    assert load.capacity_tokens is None


@pytest.mark.parametrize("usage", ["NaN", "+Inf", "-0.1", "1.5", "None"])
def test_unreadable_usage_is_unknown(usage: str) -> None:
    load = read_metrics(ONE.replace("} 0.5", f"}} {usage}"))
    assert load is not None
    assert (load.capacity_tokens, load.used_tokens) == (16384, None)


def test_tiny_usage_is_not_six() -> None:
    load = read_metrics(ONE.replace("} 0.5", "} 6.2e-05"))
    assert load is not None
    assert load.used_tokens == 1


@pytest.mark.parametrize(
    "page", ["", "<html><body>502</body></html>", "\x00\xff", "sglang:num_running_reqs 1"]
)
def test_page_of_something_else(page: str) -> None:
    assert read_metrics(page) is None


@pytest.mark.parametrize("count", ["NaN", "+Inf", "-1", "1e300"])
def test_unreadable_counts_are_unknown(count: str) -> None:
    load = read_metrics(ONE.replace("} 3.0", f"}} {count}").replace("} 900.0", f"}} {count}"))
    assert load is not None
    assert (load.running, load.waiting, load.prefix_hits) == (None, 2, None)
