"""The tagged clients once more, on the older openai and its httpx."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements/openai2.txt"
TESTS = [
    Path(__file__).with_name(name) for name in ("test_clients.py", "test_disabled.py", "test_tracing.py")
]
VERSION = "import openai; print(openai.__version__, openai.DefaultHttpxClient.__mro__[1].__module__)"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_of_openai_2(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=120
    )
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "sync", "--quiet", "--python", python, REQUIREMENTS],
        check=True,
        timeout=300,
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    version = subprocess.run(
        [python, "-c", VERSION],
        check=True, capture_output=True, text=True, timeout=120, env=env,
    )  # fmt: skip
    assert version.stdout.startswith("2.")
    assert version.stdout.strip().endswith(" httpx")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        capture_output=True, text=True, timeout=300, env=env, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
