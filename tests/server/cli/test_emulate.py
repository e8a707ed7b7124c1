"""``thunder emulate`` from the shell."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from thunder_server.emulate import EngineSettings

from .harness import thunder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--preset", "foo"], "h100-qwen30b and cpu-small"),
        (["--speed", "0"], "above 0"),
        (["--speed", "nan"], "above 0"),
        (["--kv-tokens", "3"], "no block of 16"),
        (["--kv-tokens", "0"], "--kv-tokens"),
        (["--block-size", "9999"], "1 to 1024"),
        (["--max-model-len", "99999"], "2 to 16384"),
        (["--model", ""], "name"),
        (["--port", "70000"], "--port"),
        (["--port", "x"], "--port"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_explained(words, says):
    result = thunder("emulate", *words, NO_COLOR="1", TERM="dumb")
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_help_has_examples():
    result = thunder("emulate", "--help")
    assert result.exit_code == 0
    assert "thunder emulate --port 8000" in result.output


def test_an_address_that_cannot_be_had_is_a_failure():
    result = thunder("emulate", "--host", "192.0.2.1", "--port", "0")
    assert result.exit_code == 1
    assert "cannot listen on 192.0.2.1" in result.output


def test_the_cache_bounds_the_longest_sequence_unless_the_preset_does():
    assert EngineSettings(kv_tokens=1000).limits.max_model_len == 62 * 16
    assert EngineSettings(kv_tokens=100_000).limits.max_model_len == 8192
    assert EngineSettings(kv_tokens=1000, max_model_len=500).limits.max_model_len == 500


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_when_told(number):
    command = Path(sys.executable).with_name("thunder")
    with subprocess.Popen([command, "emulate", "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" · ")[0].removeprefix("thunder emulate: ready at ")
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            assert response.status == 200
        process.send_signal(number)
        assert process.wait(10) == 0
