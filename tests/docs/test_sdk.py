"""What docs/sdk.md and the README show runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from thunder_sdk.testing import RecordingServer, use_sdk

ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["docs/sdk.md", "README.md"])
def test_the_examples_run_one_after_the_other(page: str) -> None:
    with RecordingServer() as server, use_sdk(server.url):
        names: dict[str, Any] = {"URL": server.url, "MODEL": "any", "run_tests": lambda: None}
        for example in examples(page):
            code = example.replace("http://127.0.0.1:8300", server.url)
            exec(compile(code, page, "exec"), names)
        names["client"].close()
    assert server.programs
    assert {program.outcome for program in server.programs.values()} == {"success"}
