"""The real ``litellm`` proxy as a process, with the configuration that we ship."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from ..harness.lanes import Lane

HERE = Path(__file__).parent
SHIPPED = HERE.parents[2] / "examples" / "litellm_proxy.yaml"
# What the tests need beside it: keys without a database, and somebody else's host to fall back to.
MORE_MODELS = """\
  - model_name: by-openai
    litellm_params: {model: openai/m, api_base: os.environ/THUNDER_V1, api_key: none}
  - model_name: theirs
    litellm_params: {model: hosted_vllm/m, api_base: os.environ/ELSEWHERE_V1, api_key: none}

litellm_settings:
  num_retries: 0
  fallbacks: [{by-openai: [theirs]}]
"""


@contextmanager
def proxy(lane: Lane, v1: str, elsewhere: str, **environ: str) -> Generator[str]:
    """Its root, once it is ready, until the block is left."""
    shutil.copy(HERE / "keys.py", lane.home)
    config = SHIPPED.read_text().replace("litellm_settings:\n", MORE_MODELS)
    (lane.home / "config.yaml").write_text(config + "  custom_auth: keys.authenticate\n")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    settings = {"THUNDER_V1": v1, "ELSEWHERE_V1": elsewhere, "LITELLM_MASTER_KEY": "sk-master"}
    command = [lane.python.with_name("litellm"), "--config", "config.yaml", "--host", "127.0.0.1"]
    log = lane.home / "proxy.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=lane.home,
            env=lane.env(**settings, **environ),
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 110
    while True:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, f"not ready: {log.read_text()[-4000:]}"
        try:
            if httpx.get(url + "/health/readiness", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
