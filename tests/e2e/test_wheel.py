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


def install(wheel: Path, name: str, extras: str = "") -> Path:
    """The ``bin`` directory of a new environment that holds the wheel and what it needs."""
    environment = wheel.parent / name
    made = run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    assert made.returncode == 0, made.stderr
    command = (
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        environment / "bin" / "python",
        f"{wheel}{extras}",
    )
    # Its dependencies are among those of this environment, so that they lie in uv's cache already.
    if run(*command, "--offline").returncode != 0:
        online = run(*command)
        assert online.returncode == 0, online.stderr
    return environment / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    return install(wheel, "plain")


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


IMPORT_ALL = """
import importlib, pkgutil, sys, thunder_server
for module in pkgutil.walk_packages(thunder_server.__path__, "thunder_server."):
    if not module.name.startswith(sys.argv[1]):
        importlib.import_module(module.name)
"""


def test_the_extras_bring_all_that_the_server_imports(wheel: Path) -> None:
    server = install(wheel, "server", "[server]")
    for words in (("serve", "--help"), ("emulate", "--help"), ("doctor", "--help")):
        result = run(server / "thunder", *words, cwd=server)
        assert result.returncode == 0, result.stderr
    for bin_, left_out in ((server, "thunder_server.demo"), (install(wheel, "all", "[all]"), "nothing")):
        result = run(bin_ / "python", "-c", IMPORT_ALL, left_out, cwd=bin_)
        assert result.returncode == 0, result.stderr
