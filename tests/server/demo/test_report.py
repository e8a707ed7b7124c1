"""The page: complete, well-formed, and sufficient unto itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from thunder_server.demo import report
from thunder_server.demo.measures import measure
from thunder_server.demo.story import Outline, Pair

from .samples import a_run

VOID = {"meta", "br", "link", "img"}


class Reader(HTMLParser):
    """Reads a page; elements have to be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append("data" if ("id", "data") in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        expected = self.open.pop()
        assert tag == expected or (tag, expected) == ("script", "data"), f"</{tag}> closes <{expected}>"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            self.data += data
        else:
            self.text.append(data)


def read_page() -> tuple[str, Reader]:
    pair = Pair(
        title="3 agents & more", baseline=measure(a_run("passthrough", slower=2)), scheduled=measure(a_run())
    )
    task = pair.baseline.run.task
    story = Outline(engines=task.engines, chapters=((pair.title, task.scripts),), shrunk=1.0, speed=1.0)
    page = report.page(story, [pair], ["a note <with> signs"])
    reader = Reader()
    reader.feed(page)
    reader.close()
    return page, reader


PAGE, READER = read_page()


def test_is_well_formed() -> None:
    assert READER.open == []
    assert "{{" not in PAGE
    text = " ".join(READER.text)
    assert "2.00 ×" in text
    assert "a note <with> signs" in text
    assert "3 agents & more" in text


def test_has_every_program_of_both_runs() -> None:
    (pair,) = json.loads(READER.data)
    for run in pair["runs"]:
        assert [lane["name"] for lane in run["lanes"]] == ["</script>&one", "two", "two.child"]
        assert [lane["child"] for lane in run["lanes"]] == [False, False, True]
        kinds = {segment[2] for lane in run["lanes"] for segment in lane["segments"]}
        assert kinds == {"reasoning", "acting", "waiting"}
    assert pair["runs"][1]["lanes"][0]["paused"] == [[3, 5]]


def test_shows_the_figures_without_script() -> None:
    text = " ".join(READER.text)
    for figure in ("20.0 s", "10.0 s", "24", "12", "20.0 %", "640"):
        assert figure in text, figure


def test_needs_no_network() -> None:
    assert not [value for name, value in READER.attributes if name in ("src", "href")]
    assert not re.search(r"@import|url\(|https?://|fetch\(|XMLHttpRequest", PAGE)


def test_memory_is_what_programs_want() -> None:
    lanes = measure(a_run()).lanes
    assert report.memory_wanted(lanes, 0) == [
        (0.0, 1100, 0),
        (2.0, 0, 1100),
        (3.0, 0, 0),
        (5.0, 2100, 0),
        (8.0, 0, 0),
    ]
