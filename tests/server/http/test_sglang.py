"""What SGLang's pages say of capacity and load."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from thunder_server.backends.reading import Answer, Get, Load
from thunder_server.backends.sglang import SglangEngine, read_info

RANK = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0
sglang:num_used_tokens{engine_type="unified",model_name="m",tp_rank="0"} 700.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 1000.0
"""
TOTALS = """\
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 60.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 40.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 50.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 5.0
"""
WHOLE = Load(
    capacity_tokens=1000, used_tokens=700, running=3, waiting=2, prefix_hits=55.0, prefix_queries=100.0
)


def server(pages: Mapping[str, str], asked: list[str] | None = None) -> Get:
    """What an SGLang with these pages answers."""

    async def get(path: str) -> Answer:
        if asked is not None:
            asked.append(path)
        body = pages.get(path)
        return Answer(404, b"{}") if body is None else Answer(200, body.encode())

    return get


async def load(pages: Mapping[str, str]) -> Load | None:
    return await SglangEngine().load(server(pages))


async def test_one_engine() -> None:
    assert await load({"/metrics": RANK + TOTALS}) == WHOLE


async def test_tensor_parallel_ranks_tell_the_same() -> None:
    assert await load({"/metrics": RANK + RANK.replace('tp_rank="0"', 'tp_rank="1"') + TOTALS}) == WHOLE


async def test_data_parallel_ranks_count_as_their_sum() -> None:
    pages = "".join(RANK.replace("tp_rank=", f'dp_rank="{rank}",tp_rank=') for rank in (0, 1))
    loaded = await load({"/metrics": pages})
    assert loaded == Load(capacity_tokens=2000, used_tokens=1400, running=6, waiting=4)


async def test_without_hits_yet_none_were_found() -> None:
    loaded = await load({"/metrics": RANK + TOTALS.split("sglang:cached")[0]})
    assert loaded is not None
    assert (loaded.prefix_hits, loaded.prefix_queries) == (0.0, 100.0)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_without_metrics_its_capacity_is_in_its_server_info(path: str) -> None:
    info = json.dumps({"max_total_num_tokens": 1000, "dp_size": 2})
    assert await load({path: info}) == Load(capacity_tokens=2000)


async def test_server_info_is_not_asked_for_at_every_look() -> None:
    asked: list[str] = []
    get = server({"/server_info": '{"max_total_num_tokens": 1000}'}, asked)
    engine = SglangEngine()
    for _ in range(6):
        assert await engine.load(get) == Load(capacity_tokens=1000)
    assert asked.count("/server_info") == 2


async def test_an_engine_that_says_nothing_is_not_readable() -> None:
    assert await load({}) is None
    assert await load({"/metrics": "vllm:num_requests_running 3"}) is None


@pytest.mark.parametrize(
    "info",
    [
        "",
        "<html>",
        "[]",
        "null",
        '{"max_total_num_tokens": null}',
        '{"max_total_num_tokens": true}',
        '{"max_total_num_tokens": -1}',
        '{"max_total_num_tokens": "1000"}',
        '{"max_total_num_tokens": 1000, "dp_size": -1}',
        '{"max_total_num_tokens": 1e400}',
    ],
)
def test_an_unreadable_server_info_tells_no_capacity(info: str) -> None:
    assert read_info(info) is None


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "none"])
async def test_unreadable_numbers_are_unknown(value: str) -> None:
    loaded = await load({"/metrics": RANK.replace("1000.0", value).replace("700.0", value)})
    assert loaded is not None
    assert (loaded.capacity_tokens, loaded.used_tokens, loaded.running) == (None, None, 3)


async def test_it_lives_while_it_lists_its_models() -> None:
    asked: list[str] = []
    assert await SglangEngine().alive(server({"/v1/models": "{}"}, asked))
    assert asked == ["/v1/models"]  # its /health makes an idle engine generate
