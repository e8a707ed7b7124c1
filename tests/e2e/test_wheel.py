"""What people install: the wheel, in an environment with nothing but its base dependencies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=110
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = target.glob("thunder_sdk-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The ``bin`` directory of an environment that holds the wheel and what it needs."""
    environment = wheel.parent / "env"
    made = run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    assert made.returncode == 0, made.stderr
    install = (UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", wheel)
    # Its dependencies are among those of this environment, so that they lie in uv's cache already.
    if run(*install, "--offline").returncode != 0:
        online = run(*install)
        assert online.returncode == 0, online.stderr
    return environment / "bin"


def test_it_holds_all_three_packages_and_their_data(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "thunder_sdk",
        "thunder_integrations",
        "thunder_server",
    }
    for wanted in ("thunder_sdk/py.typed", "thunder_server/core/scheduler.py", "thunder_server/cli/app.py"):
        assert wanted in names
    data = ROOT / "server" / "thunder_server" / "simulation" / "data"
    assert {f"thunder_server/simulation/data/{path.name}" for path in data.iterdir()} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdk_alone_pulls_in_no_server_and_no_framework(installed: Path) -> None:
    program = "import json, sys, thunder_sdk; print(json.dumps([thunder_sdk.__file__, *sorted(sys.modules)]))"
    result = run(installed / "python", "-c", program, cwd=installed)
    assert result.returncode == 0, result.stderr
    origin, *modules = json.loads(result.stdout)
    assert Path(origin).is_relative_to(installed.parent)
    roots = {module.split(".")[0] for module in modules}
    foreign = {
        "thunder_server",
        "thunder_integrations",
        "httpx",
        "aiohttp",
        "pydantic",
        "typer",
        "rich",
        "openai",
    }
    assert not roots & foreign


def test_without_the_extra_the_command_says_what_to_install(installed: Path) -> None:
    result = run(installed / "thunder", "serve", cwd=installed)
    assert (result.returncode, result.stdout) == (1, "")
    assert "pip install 'thunder-sdk[server]'" in result.stderr
    assert result.stderr.count("\n") == 1
